"""The commands against scripted services: what they print; each failure is one line and the right exit status."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from google.rpc.code_pb2 import Code

from metronome.inference.v1 import inference_pb2
from metronome.scheduler.v1 import plan_pb2, scheduler_pb2
from metronome_cli.errors import explain
from metronome_cli.main import run_command
from metronome_cli.options import ADDRESS
from metronome_client import MetronomeError
from support.fake_services import FakeExecutor, FakeScheduler, refuse, serving

EXAMPLE_STATE = Path(__file__).parents[3] / "docs" / "examples" / "state.json"


@pytest.fixture(autouse=True)
def no_addresses_from_outside(monkeypatch):
    monkeypatch.delenv("METRONOME_EXECUTOR", raising=False)
    monkeypatch.delenv("METRONOME_SCHEDULER", raising=False)


def run(*arguments: str) -> int:
    return run_command([str(argument) for argument in arguments])


def test_generate_prints_the_answer_alone(capsys):
    with serving(FakeExecutor()) as address:
        assert run("generate", "Tell me", "--executor", address) == 0

    assert capsys.readouterr().out == " once upon a time\n"


def test_generate_sends_the_options_as_given(capsys):
    executor = FakeExecutor()
    with serving(executor) as address:
        options = ["--max-tokens", "7", "--temperature", "0.5", "--top-k", "40", "--top-p", "0.9", "--seed", "3"]
        run(
            "generate",
            "x",
            "--executor",
            address,
            *options,
            "--stop",
            "a",
            "--stop",
            "b",
            "--priority",
            "-2",
            "--ignore-eos",
        )

    (request,) = executor.requests
    assert request.stopping.max_tokens == 7
    assert list(request.stopping.stop) == ["a", "b"]
    assert request.stopping.ignore_eos
    assert request.priority == -2
    assert (request.sampling.temperature, request.sampling.top_k, request.sampling.seed) == (0.5, 40, 3)
    assert request.sampling.top_p == pytest.approx(0.9)


def test_generate_as_json_is_one_event_a_line(capsys):
    with serving(FakeExecutor(tokens=("é",))) as address:
        run("generate", "x", "--executor", address, "--json")

    started, delta, finished = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert started["event"] == "started"
    assert delta == {"event": "delta", "text": "é", "token_ids": [0], "index": 0}
    assert (finished["event"], finished["reason"]) == ("finished", "LENGTH")


def test_generate_sends_what_may_be_asked_of_tokens(tmp_path, capsys):
    executor = FakeExecutor()
    (tmp_path / "schema.json").write_text('{"type": "null"}')
    (tmp_path / "grammar.lark").write_text('start: "a"')
    with serving(executor) as address:
        options = ["--min-p", "0.5", "--repetition-penalty", "1.5", "--presence-penalty", "-1"]
        options += ["--frequency-penalty", "0.25", "--min-tokens", "3", "--echo", "--json"]
        forms = [("--json-schema", tmp_path / "schema.json"), ("--grammar", tmp_path / "grammar.lark")]
        for form in [*forms, ("--regex", "a+")]:
            assert run("generate", "x", "--executor", address, *options, *form) == 0

    for request in executor.requests:
        sampling = request.sampling
        assert (sampling.min_p, sampling.repetition_penalty) == (0.5, 1.5)
        assert (sampling.presence_penalty, sampling.frequency_penalty) == (-1, 0.25)
        assert (request.stopping.min_tokens, request.output.echo) == (3, True)
        assert not request.output.HasField("logprobs")
    schema, grammar, regex = (request.sampling for request in executor.requests)
    assert (schema.json_schema, grammar.grammar, regex.regex) == ('{"type": "null"}', 'start: "a"', "a+")


def test_generate_prints_log_probabilities_under_the_answer(capsys):
    with serving(FakeExecutor()) as address:
        assert run("generate", "Hi", "--executor", address, "--logprobs", "2", "--prompt-logprobs", "0") == 0

    answer, *table = capsys.readouterr().out.splitlines()
    assert answer == " once upon a time"
    assert [line.split() for line in table] == [
        [],
        ["log-probabilities", "of", "the", "prompt"],
        ["token", "log", "p", "likeliest"],
        ["'i'", "-3.00"],
        [],
        ["log-probabilities", "of", "the", "answer"],
        ["token", "log", "p", "likeliest"],
        *([token, "-0.50", "'a'", "-0.50", "'b'", "-1.25"] for token in (r"'\x00'", r"'\x01'", r"'\x02'", r"'\x03'")),
    ]


def test_generate_prints_several_answers_one_after_another(capsys):
    class Two(FakeExecutor):
        def Generate(
            self, request: inference_pb2.GenerateRequest, context: grpc.ServicerContext
        ) -> Iterator[inference_pb2.GenerateResponse]:
            assert (request.sampling.n, request.sampling.best_of) == (2, 3)
            for index, text in ((1, "b"), (0, "a"), (1, "bb"), (0, "aa")):
                yield inference_pb2.GenerateResponse(delta=inference_pb2.Delta(index=index, text=text, token_ids=[7]))
            for index in (1, 0):
                yield inference_pb2.GenerateResponse(finished=inference_pb2.Finished(index=index))

    with serving(Two()) as address:
        assert run("generate", "x", "--executor", address, "--n", "2", "--best-of", "3") == 0

    assert capsys.readouterr().out == "--- 2\nbbb\n--- 1\naaa\n"


def test_generate_as_json_has_log_probabilities_where_they_were_asked_for(capsys):
    with serving(FakeExecutor(tokens=("é",))) as address:
        run("generate", "x", "--executor", address, "--json", "--logprobs", "2")

    _, delta, _ = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert delta["logprobs"] == [{"logprob": -0.5, "top_token_ids": [97, 98], "top_logprobs": [-0.5, -1.25]}]
    assert "prompt_logprobs" not in delta


def test_generate_reads_a_prompt_from_a_file(tmp_path, capsys):
    executor = FakeExecutor()
    (tmp_path / "prompt.txt").write_text("from a file")
    with serving(executor) as address:
        run("generate", "--prompt-file", tmp_path / "prompt.txt", "--executor", address)

    assert executor.requests[0].text == "from a file"


def test_generate_says_once_beside_the_answer_why_it_waits(capsys):
    with serving(FakeExecutor(planning_failure="no scheduler answers at here")) as address:
        assert run("generate", "x", "--executor", address) == 0

    output = capsys.readouterr()
    assert output.out == " once upon a time\n"
    assert output.err == "no scheduler answers at here; waiting requests stay\n"


def test_state_says_why_there_are_no_plans(capsys):
    with serving(FakeExecutor(planning_failure="no scheduler answers at here")) as address:
        assert run("state", "--executor", address) == 0

    assert "no scheduler answers at here; waiting requests stay\n" in capsys.readouterr().out


def test_tables_in_a_file_end_their_lines_with_their_last_word_and_cut_nothing(capsys):
    with serving(FakeExecutor(planning_failure="x" * 300)) as address:
        run("state", "--executor", address)

    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line != line.rstrip()] == []
    assert "x" * 300 + "; waiting requests stay" in lines


def test_chat_with_a_model_without_a_template_says_what_to_use(capsys):
    remedy = "use `metronome generate`, which continues text"
    with serving(FakeExecutor()) as address:
        assert run("chat", "--executor", address) == 1

    assert capsys.readouterr().err == f"error: fake has no chat template; {remedy}\n"


def test_state_shows_the_books(capsys):
    with serving(FakeExecutor()) as address:
        assert run("state", "--executor", address) == 0

    shown = capsys.readouterr().out
    assert "0 of 10 used, 16 tokens each" in shown
    assert "iterations" in shown
    assert "1,024 tokens found, 3,000 looked up" in shown


def test_state_as_json_is_a_state_to_plan(tmp_path, capsys):
    scheduler = FakeScheduler(scheduler_pb2.PlanResponse())
    with serving(FakeExecutor()) as executor_address, serving(scheduler) as scheduler_address:
        run("state", "--executor", executor_address, "--json")
        (tmp_path / "books.json").write_text(capsys.readouterr().out)
        assert run("plan", tmp_path / "books.json", "--scheduler", scheduler_address) == 0

    assert scheduler.requests[0].state.executors[0].executor_id == "fake"


def test_plan_prints_the_plan_and_the_shortfall(capsys):
    plan = plan_pb2.ExecutorPlan(
        executor_id="example",
        iteration=412,
        scheduled=plan_pb2.ScheduledTable(id=[1], num_tokens=[1], reason=[plan_pb2.REASON_DECODE]),
        composition=plan_pb2.PassComposition(num_decode_tokens=1, num_decode_requests=1),
        shortfall=plan_pb2.Shortfall(id=7, reason=plan_pb2.REASON_WAITING_FOR_BLOCKS, needed=14, available=9),
    )
    scheduler = FakeScheduler(scheduler_pb2.PlanResponse(plans=[plan]))
    with serving(scheduler) as address:
        assert run("plan", EXAMPLE_STATE, "--scheduler", address, "--explain") == 0

    shown = capsys.readouterr().out
    assert "request 7 needs 14 blocks, 9 free" in shown
    assert "1 decode token of 1 request" in shown
    assert scheduler.requests[0].explain


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ("generate", "x", "--executor", "127.0.0.1:1"),
            "error: no executor answers at 127.0.0.1:1; start one with `metronome up` or name another with --executor",
        ),
        (
            ("state", "--executor", "127.0.0.1:1"),
            "error: no executor answers at 127.0.0.1:1; start one with `metronome up` or name another with --executor",
        ),
        (
            ("plan", EXAMPLE_STATE, "--scheduler", "127.0.0.1:1"),
            "error: no scheduler answers at 127.0.0.1:1; "
            "start one with `metronome up` or name another with --scheduler",
        ),
        (
            ("run", "--executor", "127.0.0.1:1"),
            "error: no executor answers at 127.0.0.1:1; start one with `metronome up` or name another with --executor",
        ),
        (
            ("plan", "nowhere.json"),
            "error: cannot read nowhere.json: No such file or directory; name a text file, or `-` for stdin",
        ),
    ],
)
def test_a_failure_is_one_line_that_says_what_to_do(arguments, line, capsys):
    assert run(*arguments) == 1
    assert capsys.readouterr().err == line + "\n"


def test_the_services_reason_becomes_advice(capsys):
    with serving(FakeExecutor()) as address:
        assert run("generate", "fail", "--executor", address) == 1

    assert capsys.readouterr().err == "error: too long; shorten the prompt or lower --max-tokens\n"


def test_an_unknown_profile_is_one_line(capsys):
    with serving(FakeScheduler(scheduler_pb2.PlanResponse())) as address:
        assert run("plan", EXAMPLE_STATE, "--profile", "fast", "--scheduler", address) == 1

    assert capsys.readouterr().err == "error: no profile has the name fast; name another with --profile\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ("generate",),
        ("generate", "x", "--prompt-file", "y"),
        ("generate", "x", "--max-tokens", "many"),
        ("generate", "x", "--top-k", str(2**40)),
        ("generate", "x", "--max-tokens", "0"),
        ("generate", "x", "--stop", "\udcff"),
        ("generate", "x", "--tenant", "\udcff"),
        ("plan", EXAMPLE_STATE, "--profile", "\udcff"),
        ("generate", "x", "--executor", ""),
        ("generate", "x", "--regex", "a", "--json-schema", "b"),
        ("generate", "x", "--logprobs", "-1"),
        ("run", "--scheduler", "garbage"),
        ("up", "--model", ""),
        ("dance",),
        ("run", "--num-requests", "0"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_exit_status_2(arguments, capsys):
    assert run(*arguments) == 2

    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "place"),
    [
        ("{", "line 1, column 2"),
        ("[]", "holds no JSON object"),
        ("[" * 100_000, "is nested too deeply"),
        ("1" * 5_000, "holds a number of too many digits"),
        ('{"executors": [{"iteration": "soon"}]}', "state.executors.iteration: 'soon' is no number"),
        (
            '{"executors": [{"requests": {"ident": [1]}}]}',
            'state.executors.requests: Message type "metronome.scheduler.v1.RequestTable" has no field named "ident"',
        ),
    ],
)
def test_a_broken_state_is_one_line_with_the_place(content, place, tmp_path, capsys):
    (tmp_path / "state.json").write_text(content)

    assert run("plan", tmp_path / "state.json") == 1
    error = capsys.readouterr().err
    assert place in error
    assert error.count("\n") == 1


def test_what_the_scheduler_finds_in_a_state_names_its_file(tmp_path, capsys):
    class Strict(FakeScheduler):
        def Plan(self, request: scheduler_pb2.PlanRequest, context: grpc.ServicerContext) -> scheduler_pb2.PlanResponse:
            refuse(context, Code.INVALID_ARGUMENT, "MISSING_FIELD", "state: is required")
            return self.response

    (tmp_path / "empty.json").write_text("{}")
    with serving(Strict(scheduler_pb2.PlanResponse())) as address:
        assert run("plan", tmp_path / "empty.json", "--scheduler", address) == 1

    assert capsys.readouterr().err == f"error: {tmp_path / 'empty.json'}: state: is required\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--max-tokens", "abc"), "'abc' is no whole number"),
        (("--max-tokens", "0"), "0 is less than 1"),
        (("--top-k", "-1"), "-1 is less than 0"),
        (("--executor", ""), "'' is no address; give HOST:PORT"),
        (("--tenant", "\udcff"), "is not UTF-8 text"),
    ],
)
def test_a_value_that_cannot_be_is_refused_in_words(arguments, words, capsys):
    assert run("generate", "x", *arguments) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("address", ["localhost:1", "10.0.0.1:50052", "[::1]:50052", "unix:/tmp/x", "dns:///a.b:1"])
def test_an_address_is_what_grpc_takes(address):
    assert ADDRESS.convert(address, None, None) == address


def test_the_help_of_generate_shows_no_machine_limits(capsys):
    assert run("generate", "--help") == 0
    assert "2147483648" not in capsys.readouterr().out


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize("command", [("generate", "x"), ("generate", "x", "--json"), ("state",), ("run",)])
def test_an_output_that_cannot_be_written_is_one_line(command):
    with serving(FakeExecutor()) as address, open("/dev/full", "w") as full:
        arguments = [sys.executable, "-m", "metronome_cli", *command, "--executor", address]
        done = subprocess.run(arguments, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)

    assert (done.returncode, done.stderr) == (1, "error: cannot write the output: No space left on device\n")


@pytest.mark.parametrize("package", ["click", "rich"])
def test_without_the_packages_of_the_command_line_it_names_the_extra(package):
    code = f"import sys; sys.modules[{package!r}] = None; from metronome_cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)

    line = f"error: the command line needs {package}; install 'metronome-llm[cli]'\n"
    assert (done.returncode, done.stderr) == (1, line)


def test_ctrl_c_while_the_command_line_is_imported_leaves_no_traceback(tmp_path):
    (tmp_path / "click.py").write_text("import time\nprint('importing', flush=True)\ntime.sleep(60)\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", "from metronome_cli.main import main; main()"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.stderr.read() == b""
        assert process.wait(30) in (-signal.SIGINT, 130)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_run_that_is_told_to_end_unwinds(number, tmp_path):
    (tmp_path / "prompt.txt").write_text("hang")
    executor = FakeExecutor()
    with serving(executor) as address:
        command = [sys.executable, "-m", "metronome_cli", "run", "--executor", address, "--prompts-dir", str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            process.stdout.readline()  # the heading of the passes: the run goes on
            process.send_signal(number)
            assert process.wait(30) == 128 + number


def test_a_run_whose_reader_goes_away_ends_silently():
    with serving(FakeExecutor()) as address:
        command = [sys.executable, "-m", "metronome_cli", "run", "--executor", address]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            process.stdout.close()
            assert process.stderr.read() == b""
            assert process.wait(30) == 1


@pytest.mark.parametrize(
    ("code", "message", "line"),
    [
        (
            grpc.StatusCode.UNAVAILABLE,
            "Stream removed (Socket closed)",
            "the executor at here went away; see its log, where it was started",
        ),
        (grpc.StatusCode.INTERNAL, "it broke", "it broke (INTERNAL)"),
        (
            grpc.StatusCode.UNIMPLEMENTED,
            "",
            "what answers at here is no executor; start one with `metronome up` or name another with --executor",
        ),
    ],
)
def test_a_failure_without_a_reason_is_explained_by_its_code(code, message, line):
    assert str(explain(MetronomeError(code, "", message, {}), "executor", "here")) == line


def test_a_prompt_that_is_not_utf_8_is_one_line(tmp_path, capsys):
    (tmp_path / "prompt.txt").write_bytes(b"ok \xff")

    assert run("generate", "--prompt-file", tmp_path / "prompt.txt") == 1
    assert "byte 3" in capsys.readouterr().err


def test_a_reader_that_goes_away_ends_the_command_silently():
    with serving(FakeExecutor(tokens=("word ",) * 50_000)) as address:
        command = [sys.executable, "-m", "metronome_cli", "generate", "x", "--executor", address]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            process.stdout.read(5)
            process.stdout.close()
            assert process.stderr.read() == b""
            assert process.wait(30) == 1
