"""Settings: a flag before the environment before the default; what is wrong ends the program with a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from executor_service.config import Config, parse_config
from executor_service.engine.ngram import NO_LOOKUP, NgramLookup
from executor_service.engine.planning import Overlap
from executor_service.kernels.choice import KernelChoice
from executor_service.kv.prefix_cache import PrefixScope
from executor_service.model.quantization import Quantization
from executor_service.scheduler_tls import SchedulerTls
from service_shell.logs import LogFormat
from service_shell.metrics_endpoint import MetricsAddress, metrics_address
from service_shell.tls import TlsFiles


def parse(*argv: str, **environ: str) -> Config:
    return parse_config(argv, {f"METRONOME_EXECUTOR_{name}": value for name, value in environ.items()})


def test_defaults_are_those_of_the_help() -> None:
    config = parse()
    assert (config.host, config.port, config.model) == ("127.0.0.1", 50052, "gemma3-270m")
    assert config.scheduler_addresses == ("127.0.0.1:50051",)
    assert (config.block_size, config.max_num_batched_tokens, config.max_num_seqs) == (16, 512, 64)
    assert config.kv_cache_bytes is None
    assert config.overlap is Overlap.ON
    assert config.prefix_cache is PrefixScope.TENANT
    assert config.lookup == NO_LOOKUP
    assert config.quantization is Quantization.NONE
    assert config.plan_timeout_s == 1.0
    unset = (config.num_blocks, config.num_swap_blocks, config.max_model_len, config.max_num_waiting, config.profile)
    assert unset == (None,) * 5


def test_the_environment_goes_before_the_default_and_a_flag_before_both() -> None:
    assert parse(NUM_BLOCKS="7").num_blocks == 7
    assert parse("--num-blocks", "9", NUM_BLOCKS="7").num_blocks == 9
    assert parse("--overlap", "on", OVERLAP="off").overlap is Overlap.ON
    assert parse(OVERLAP="off", LOG_FORMAT="json").log_format is LogFormat.JSON


def test_schedulers_of_the_environment_are_separated_by_commas() -> None:
    assert parse(SCHEDULER="a:1,b:2").scheduler_addresses == ("a:1", "b:2")
    assert parse(SCHEDULER="a:1").scheduler_addresses == ("a:1",)


def test_schedulers_of_flags_stand_instead_of_those_of_the_environment() -> None:
    flags = ("--scheduler", "c:3", "--scheduler", "d:4")
    assert parse(*flags).scheduler_addresses == ("c:3", "d:4")
    assert parse(*flags, SCHEDULER="a:1,b:2").scheduler_addresses == ("c:3", "d:4")


@pytest.mark.parametrize("address", ["127.0.0.1:1", "localhost:65535", "a-b.c_d:1", "[::1]:50051", "dns:///name:50051"])
def test_a_scheduler_is_a_host_and_a_port(address: str) -> None:
    assert parse("--scheduler", address).scheduler_addresses == (address,)


@pytest.mark.parametrize("blank", ["", ",", " , "])
def test_a_blank_list_of_schedulers_is_none_at_all(blank: str) -> None:
    assert parse(SCHEDULER=blank).scheduler_addresses == ("127.0.0.1:50051",)


@pytest.mark.parametrize("blank", ["", ",", " , "])
def test_a_flag_that_names_no_scheduler_is_refused(blank: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse("--scheduler", blank)
    assert "argument --scheduler (flag)" in capsys.readouterr().err


def test_every_setting_can_come_from_the_environment() -> None:
    config = parse(
        HOST="0.0.0.0",
        TLS_CERTIFICATE="c",
        TLS_KEY="k",
        TLS_CLIENT_CA="a",
        SCHEDULER_CA="sa",
        SCHEDULER_CERTIFICATE="sc",
        SCHEDULER_KEY="sk",
        PORT="0",
        MAX_MESSAGE_BYTES="1MiB",
        MAX_METADATA_BYTES="2KiB",
        MAX_STREAMS_PER_CONNECTION="5",
        MAX_NUM_CALLS="6",
        MAX_PROMPT_BYTES="3KiB",
        ACCESS_FILE="af",
        QUOTA_FILE="qf",
        SCHEDULER_TOKEN_FILE="st",
        ADDRESS_FILE="address",
        EXECUTOR_ID="e",
        GRACE_S="0.5",
        STALL_S="7.5",
        MODEL="m",
        DEVICE="cuda:1",
        DTYPE="float32",
        KERNELS="torch",
        QUANTIZATION="int8",
        THREADS="2",
        TENSOR_PARALLEL_SIZE="4",
        KV_CACHE_MEMORY="64MiB",
        NUM_SWAP_BLOCKS="0",
        BLOCK_SIZE="8",
        PREFIX_CACHE="shared",
        MAX_NUM_BATCHED_TOKENS="33",
        MAX_NUM_SEQS="3",
        MAX_MODEL_LEN="99",
        MAX_NUM_WAITING="0",
        SPECULATIVE_DRAFTS="4",
        SPECULATIVE_NGRAM_MIN="3",
        SPECULATIVE_NGRAM_MAX="5",
        PROFILE="p",
        PLAN_TIMEOUT_MS="250",
        RECORD_DIR="r",
        RECORD_MAX_BYTES="1MiB",
        RECORD_MAX_FILES="2",
        METRICS_ADDRESS="[::1]:0",
        METRICS_MAX_TENANTS="5",
        TRACING="otlp",
        LOG_LEVEL="debug",
    )
    assert config == Config(
        host="0.0.0.0",
        tls=TlsFiles(certificate=Path("c"), key=Path("k"), client_ca=Path("a")),
        port=0,
        max_message_bytes=2**20,
        max_metadata_bytes=2**11,
        max_streams_per_connection=5,
        max_num_calls=6,
        max_prompt_bytes=3 * 2**10,
        access_file=Path("af"),
        quota_file=Path("qf"),
        scheduler_token_file=Path("st"),
        address_file=Path("address"),
        executor_id="e",
        grace_s=0.5,
        stall_s=7.5,
        model="m",
        device="cuda:1",
        dtype="float32",
        kernels=KernelChoice.TORCH,
        quantization=Quantization.INT8,
        threads=2,
        tensor_parallel_size=4,
        num_blocks=None,
        kv_cache_bytes=64 * 2**20,
        num_swap_blocks=0,
        block_size=8,
        prefix_cache=PrefixScope.SHARED,
        max_num_batched_tokens=33,
        max_num_seqs=3,
        max_model_len=99,
        max_num_waiting=0,
        scheduler_addresses=("127.0.0.1:50051",),
        scheduler_tls=SchedulerTls(ca=Path("sa"), certificate=Path("sc"), key=Path("sk")),
        lookup=NgramLookup(max_num_drafts=4, min_ngram=3, max_ngram=5),
        profile="p",
        plan_timeout_s=0.25,
        overlap=Overlap.ON,
        log_format=LogFormat.CONSOLE,
        record_dir=Path("r"),
        record_max_bytes=2**20,
        record_max_files=2,
        metrics_address=MetricsAddress(host="::1", port=0),
        metrics_max_tenants=5,
        tracing="otlp",
        log_level="debug",
    )


@pytest.mark.parametrize("insecure", [("--insecure",), ("--insecure", "on")])
def test_another_address_than_loopback_needs_tls_or_the_word_that_it_is_insecure(insecure: tuple[str, ...]) -> None:
    assert parse("--host", "0.0.0.0", *insecure).tls is None
    assert parse("--host", "0.0.0.0", INSECURE="1").tls is None
    assert parse("--host", "::1").tls is None


@pytest.mark.parametrize(
    ("size", "num_bytes"),
    [("1GiB", 2**30), ("512MiB", 2**29), ("2TiB", 2**41), ("1.5KiB", 1536), ("4096", 4096), ("2e3", 2000)],
)
def test_sizes_have_units(size: str, num_bytes: int) -> None:
    assert parse("--kv-cache-memory", size).kv_cache_bytes == num_bytes


BAD = [
    ("--host", "0.0.0.0"),
    ("--tls-certificate", "c"),
    ("--tls-client-ca", "a"),
    ("--scheduler-key", "k"),
    ("--insecure", "perhaps"),
    ("--scheduler-token-file", "token"),  # which is sent over TLS alone
    ("--max-num-calls", "0"),
    ("--max-prompt-bytes", "0"),
    ("--max-message-bytes", "4GiB"),
    ("--max-metadata-bytes", "none"),
    ("--max-streams-per-connection", "0"),
    ("--kv-cache-memory", "0"),
    ("--kv-cache-memory", "-1GiB"),
    ("--kv-cache-memory", "1GB"),
    ("--kv-cache-memory", "GiB"),
    ("--kv-cache-memory", "nan"),
    ("--kv-cache-memory", "inf"),
    ("--kv-cache-memory", "much"),
    ("--kv-cache-memory", "1PiB"),
    ("--model", ""),
    ("--model", " "),
    ("--scheduler", "garbage"),
    ("--scheduler", "host:"),
    ("--scheduler", ":50051"),
    ("--scheduler", "host:0"),
    ("--scheduler", "host:65536"),
    ("--scheduler", "two words:1"),
    ("--scheduler", "::1:50051"),
    ("--num-blocks", "0"),
    ("--num-swap-blocks", "-1"),
    ("--block-size", "0"),
    ("--block-size", "1.5"),
    ("--max-num-batched-tokens", "0"),
    ("--max-num-seqs", "many"),
    ("--max-model-len", "0"),
    ("--max-num-waiting", "-1"),
    ("--port", "65536"),
    ("--port", "-1"),
    ("--threads", "0"),
    ("--grace-s", "-1"),
    ("--stall-s", "0"),
    ("--grace-s", "nan"),
    ("--grace-s", "inf"),
    ("--plan-timeout-ms", "0"),
    ("--dtype", "int8"),
    ("--quantization", "int4"),
    ("--overlap", "maybe"),
    ("--speculative-drafts", "-1"),
    ("--speculative-drafts", "257"),
    ("--speculative-ngram-min", "0"),
    ("--speculative-ngram-min", "5"),  # more than the most
    ("--speculative-ngram-max", "1"),  # less than the least
    ("--log-format", "xml"),
    ("--log-level", "loud"),
]


@pytest.mark.parametrize(("flag", "value"), BAD)
def test_a_bad_value_is_refused_wherever_it_comes_from(
    flag: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for argv, environ in (
        ([f"{flag}={value}"], {}),
        ([], {flag.removeprefix("--").replace("-", "_").upper(): value}),
    ):
        with pytest.raises(SystemExit) as raised:
            parse(*argv, **environ)
        assert raised.value.code == 2
        message = capsys.readouterr().err.splitlines()[-1]
        assert flag in message
        assert value.removeprefix("-") in message


def test_the_help_gives_each_default_once(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse("--help")
    told = " ".join(capsys.readouterr().out.split())
    assert "(default: 50052)" in told
    assert "(default: None)" not in told
    assert ") (default" not in told


def test_an_unknown_flag_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        parse("--no-such-flag")
    assert raised.value.code == 2
    assert "--no-such-flag" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("9102", ("127.0.0.1", 9102)),
        ("0", ("127.0.0.1", 0)),
        ("0.0.0.0:9102", ("0.0.0.0", 9102)),
        ("metrics.example:1", ("metrics.example", 1)),
        ("[::1]:9102", ("::1", 9102)),
    ],
)
def test_metrics_are_served_on_loopback_unless_a_host_is_named(text: str, address: tuple[str, int]) -> None:
    host, port = address
    assert metrics_address(text) == MetricsAddress(host=host, port=port)


def test_without_an_address_there_are_no_metrics() -> None:
    assert parse(METRICS_ADDRESS="").metrics_address is None
    assert parse().metrics_address is None


@pytest.mark.parametrize("text", ["x", "65536", "-1", ":9102", "host:", "1.5"])
def test_an_address_for_metrics_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not an address for metrics"):
        metrics_address(text)
