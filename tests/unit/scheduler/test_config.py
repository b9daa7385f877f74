"""Where settings come from, and which profiles a service starts with."""

from __future__ import annotations

from pathlib import Path

import pytest

from scheduler_service.config import parse_config
from scheduler_service.core.policy import Eviction, Ordering, Policy
from scheduler_service.profiles import DEFAULT_PROFILE, PROFILES_DIRECTORY, ProfileError, load_profiles
from service_shell.tls import TlsFiles


def test_defaults_are_those_of_the_help() -> None:
    config = parse_config([], {})
    assert (config.host, config.port, config.tls, config.profile) == ("127.0.0.1", 50051, None, DEFAULT_PROFILE)
    assert (config.profiles_directory, config.report_interval_s) == (PROFILES_DIRECTORY, 60)
    assert (config.max_message_bytes, config.record_max_bytes, config.record_max_files) == (2**26, 2**26, 16)
    assert (config.address_file, config.record_dir, config.shadow_profile) == (None, None, None)


@pytest.mark.parametrize("value", ["0", "2GiB", "-1", "many", "1..2"])
def test_a_message_is_of_a_size_that_grpc_can_count(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_config([f"--max-message-bytes={value}"], {})
    assert caught.value.code == 2
    assert f"argument --max-message-bytes (flag): '{value}' is" in capsys.readouterr().err


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_loopback_needs_no_tls(host: str) -> None:
    assert parse_config(["--host", host], {}).host == host


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "::", "scheduler.example"])
def test_another_address_needs_tls_or_the_word_that_it_is_insecure(
    host: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse_config(["--host", host], {"METRONOME_SCHEDULER_INSECURE": "off"})
    assert f"{host} is no loopback address: give --tls-certificate and --tls-key" in capsys.readouterr().err
    assert parse_config(["--host", host, "--insecure"], {}).tls is None
    assert parse_config(["--host", host], {"METRONOME_SCHEDULER_INSECURE": "on"}).tls is None
    files = ["--tls-certificate", "c", "--tls-key", "k", "--tls-client-ca", "a"]
    tls = parse_config(["--host", host, *files], {}).tls
    assert tls == TlsFiles(certificate=Path("c"), key=Path("k"), client_ca=Path("a"))


@pytest.mark.parametrize("flag", ["--tls-certificate", "--tls-key", "--tls-client-ca"])
def test_tls_needs_a_certificate_and_its_key(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_config([flag, "file"], {})
    told = capsys.readouterr().err
    assert flag in told
    assert "--tls-certificate and --tls-key" in told


def test_a_choice_that_is_none_is_answered_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_config(["--log-level", "loud"], {})
    message = "argument --log-level (flag): 'loud' is none of debug, info, warning, error\n"
    assert capsys.readouterr().err.endswith(message)


def test_the_default_profile_bounds_prefills_as_the_default_policy_with_a_bound_does() -> None:
    profiles = load_profiles()
    assert profiles.default.name == DEFAULT_PROFILE == "metronome"
    assert profiles.by_name["fifo"].policy == Policy(max_inter_token_slowdown=4.0)
    assert profiles.default.policy.max_inter_token_slowdown == 4.0


def test_a_profile_is_read_from_its_file(tmp_path: Path) -> None:
    text = 'description = "Swaps."\n[policy]\neviction = "SWAP"\nwatermark = 0\nchunk_size_tokens = 64\n'
    (tmp_path / "swapping.toml").write_text(text)
    profile = load_profiles("swapping", tmp_path).default
    assert profile.description == "Swaps."
    assert profile.policy == Policy(ordering=Ordering.FIFO, eviction=Eviction.SWAP, watermark=0, chunk_size_tokens=64)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('description = "x"\nname = "x"', "unknown key 'name'"),
        ('description = "x"\n[policy]\nchunk_size = 64', "unknown key 'chunk_size'"),
        ('description = "x"\n[policy]\nordering = "LIFO"', "ordering is one of FIFO"),
        ('description = "x"\n[policy]\nordering = ["FIFO"]', "ordering is one of FIFO"),
        ('description = "x"\n[policy]\nchunk_size_tokens = "64"', "chunk_size_tokens cannot be '64'"),
        ('description = "x"\n[policy]\nchunk_size_tokens = true', "chunk_size_tokens cannot be True"),
        ('description = "x"\n[policy]\nchunk_size_tokens = 0', "out of range"),
        ('description = "x"\n[policy]\nhold_for_shared_prefix = "yes"', "hold_for_shared_prefix cannot be 'yes'"),
        ("[policy]", "needs a text `description`"),
        ("description =", "Invalid value"),
    ],
)
def test_a_profile_that_nobody_understands_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "odd.toml").write_text(text)
    with pytest.raises(ProfileError) as caught:
        load_profiles("odd", tmp_path)
    assert said in str(caught.value)
    assert "odd.toml" in str(caught.value)


def test_a_directory_without_profiles_is_told(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"--profiles-directory .* holds no profile, which is a file NAME\.toml"):
        load_profiles("fifo", tmp_path)
    with pytest.raises(ProfileError, match=r"cannot read --profiles-directory .*none: No such file or directory"):
        load_profiles("fifo", tmp_path / "none")


def test_a_profile_that_does_not_exist_is_named_with_those_that_do() -> None:
    with pytest.raises(ProfileError, match="no profile is named 'fast'; choose one of fifo"):
        load_profiles("fast")
