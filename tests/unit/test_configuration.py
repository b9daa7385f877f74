"""Settings of both services: a flag before the environment before a file before the default, and nothing unknown."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import executor_service.config
import scheduler_service.config
from executor_service.settings import EXECUTOR
from scheduler_service.settings import SCHEDULER

PAGE = Path(__file__).parents[2] / "docs/configuration.md"

Parse = Callable[[Sequence[str], Mapping[str, str]], Any]


@pytest.fixture(params=["scheduler", "executor"])
def service(request: pytest.FixtureRequest) -> tuple[Parse, str]:
    """How a service reads its settings, and what its variables begin with."""
    if request.param == "scheduler":
        return scheduler_service.config.parse_config, SCHEDULER.prefix
    return executor_service.config.parse_config, EXECUTOR.prefix


def refusal(parse: Parse, argv: Sequence[str], environ: Mapping[str, str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as raised:
        parse(argv, environ)
    assert raised.value.code == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    return line.rstrip("\n")


def printed(parse: Parse, argv: Sequence[str], environ: Mapping[str, str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as raised:
        parse([*argv, "--print-config"], environ)
    assert raised.value.code == 0
    return capsys.readouterr().out


def test_flag_environment_file_default_in_this_order(service: tuple[Parse, str], tmp_path: Path) -> None:
    parse, prefix = service
    file = tmp_path / "settings.toml"
    file.write_text('port = 1\nlog_level = "error"\nrecord_max_files = 3\n')
    argv, environ = ["--config", str(file)], {f"{prefix}PORT": "2", f"{prefix}LOG_LEVEL": "debug", "OTHER": "x"}
    config = parse([*argv, "--port", "4"], environ)
    assert (config.port, config.log_level, config.record_max_files, config.host) == (4, "debug", 3, "127.0.0.1")
    assert parse(argv, environ).port == 2
    assert parse(argv, {}).port == 1
    assert parse([], {f"{prefix}CONFIG": str(file)}).port == 1


def test_a_file_has_numbers_switches_and_lists(tmp_path: Path) -> None:
    file = tmp_path / "executor.toml"
    file.write_text('grace_s = 0.5\ninsecure = true\nscheduler = ["a:1", "[::1]:2"]\nnum_swap_blocks = 0\nport = "7"\n')
    config = executor_service.config.parse_config(["--config", str(file), "--host", "0.0.0.0"], {})
    assert config.scheduler_addresses == ("a:1", "[::1]:2")
    assert (config.grace_s, config.num_swap_blocks, config.port, config.host) == (0.5, 0, 7, "0.0.0.0")


@pytest.mark.parametrize(
    ("contents", "said"),
    [
        ("prot = 1", "'prot' in FILE is no setting; did you mean port?"),
        ("config = 'x.toml'", "'config' in FILE is no setting"),
        ("[serving]\nport = 1", "'serving' in FILE is no setting"),
        ("port = 70000", "argument --port (FILE): '70000' is not a port, 0 to 65535"),
        ("port = true", "argument --port (FILE): 'on' is not a port, 0 to 65535"),
        ("port = {}", "'port' in FILE must be a text, a number, true or false, or a list of texts"),
        ("port = [1]", "'port' in FILE must be a text, a number, true or false, or a list of texts"),
        ("port 1", "--config FILE is no TOML: Expected '=' after a key in a key/value pair (at line 1, column 6)"),
        ("\udcff", "--config FILE is no TOML: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"),
    ],
)
def test_a_file_that_nobody_understands_is_refused(
    service: tuple[Parse, str], contents: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(contents, errors="surrogateescape")
    assert refusal(service[0], ["--config", str(file)], {}, capsys).endswith(
        ": error: " + said.replace("FILE", str(file))
    )


def test_a_file_that_is_not_there_is_told(
    service: tuple[Parse, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = str(tmp_path / "missing.toml")
    assert f"cannot read --config {missing}: No such file" in refusal(service[0], ["--config", missing], {}, capsys)


def test_what_is_unknown_is_refused_with_what_comes_nearest(
    service: tuple[Parse, str], capsys: pytest.CaptureFixture[str]
) -> None:
    parse, prefix = service
    assert refusal(parse, [], {f"{prefix}LOG_FROMAT": "json"}, capsys).endswith(
        f"{prefix}LOG_FROMAT in the environment is no setting; did you mean {prefix}LOG_FORMAT?"
    )
    assert refusal(parse, [], {f"{prefix}XYZZY": "1"}, capsys).endswith("is no setting")
    assert refusal(parse, ["--prot=1"], {}, capsys).endswith("unrecognized arguments: --prot=1; did you mean --port?")
    assert refusal(parse, ["--log-f", "json"], {}, capsys).endswith("did you mean --log-format?")
    assert "expected one argument" in refusal(parse, ["--port"], {}, capsys)


def test_a_wrong_value_is_told_with_where_it_comes_from(
    service: tuple[Parse, str], capsys: pytest.CaptureFixture[str]
) -> None:
    parse, prefix = service
    said = refusal(parse, [], {f"{prefix}PORT": "many"}, capsys)
    assert said.endswith(f"argument --port ({prefix}PORT): 'many' is not a port, 0 to 65535")
    said = refusal(parse, ["--port", "many"], {}, capsys)
    assert said.endswith("argument --port (flag): 'many' is not a port, 0 to 65535")


def test_what_is_printed_says_where_it_comes_from_and_can_be_given_back(
    service: tuple[Parse, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parse, prefix = service
    file = tmp_path / "settings.toml"
    file.write_text('profile = "odd \\"name\\" \\u007f é"\n')
    argv, environ = (
        ["--config", str(file), "--host", "::1"],
        {f"{prefix}PORT": "0", f"{prefix}RECORD_MAX_BYTES": "1MiB"},
    )
    told = printed(parse, argv, environ, capsys)
    assert 'host = "::1"  # flag\n' in told
    assert f"port = 0  # {prefix}PORT\n" in told
    assert f"  # {file}\n" in told
    assert "record_max_files = 16  # default\n" in told
    assert "# address_file is not set\n" in told
    again = tmp_path / "again.toml"
    again.write_text(told)
    assert parse(["--config", str(again)], {}) == parse(argv, environ)


def test_a_list_is_printed_as_one(capsys: pytest.CaptureFixture[str]) -> None:
    environ = {"METRONOME_EXECUTOR_SCHEDULER": "a:1,b:2"}
    told = printed(executor_service.config.parse_config, ["--insecure"], environ, capsys)
    assert 'scheduler = ["a:1", "b:2"]  # METRONOME_EXECUTOR_SCHEDULER\n' in told
    assert "insecure = true  # flag\n" in told


def test_nothing_is_printed_of_settings_that_are_wrong(
    service: tuple[Parse, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert "--host: 0.0.0.0 is no loopback" in refusal(service[0], ["--print-config", "--host", "0.0.0.0"], {}, capsys)


@pytest.mark.parametrize("program", [SCHEDULER, EXECUTOR], ids=["scheduler", "executor"])
def test_no_name_stands_twice_and_groups_are_whole(program: Any) -> None:
    names = [setting.name for setting in program.settings]
    assert sorted(set(names)) == sorted(names)
    groups = [setting.group for setting in program.settings]
    assert sum(a != b for a, b in pairwise(groups)) == len(set(groups)) - 1


def test_the_page_has_the_tables_as_they_are() -> None:
    """`python docs/tools/configuration.py` writes them."""
    tool = PAGE.parent / "tools/configuration.py"
    spec = importlib.util.spec_from_file_location("configuration_page", tool)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    written = PAGE.read_text(encoding="utf-8")
    assert module.page(written) == written
