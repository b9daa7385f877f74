"""Workloads: read, drawn, refused; and what is done to them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from metronome_lab.errors import LabError
from metronome_lab.hardware.profile import hardware_names, load_hardware, with_limits, write_hardware
from metronome_lab.workload.generate import generate
from metronome_lab.workload.traces import read_workload
from support.lab import drawn_workload, workload_of
from support.traces import TRACES

WORKLOADS = Path(__file__).parents[4] / "docs" / "lab" / "workloads"
HEADER = "request_id,arrival_s,prompt_tokens,output_tokens,tenant,prefix_hashes\n"


def test_a_csv_is_read_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(HEADER + "a,0.0,600,5,chat,3 9\nb,0.25,10,1,code,\n")

    workload = read_workload(path)

    assert (workload.name, list(workload.ids), workload.tenants) == ("trace", ["a", "b"], ("chat", "code"))
    assert workload.arrival_us.tolist() == [0, 250_000]
    assert workload.num_prompt_tokens.tolist() == [600, 10]
    assert workload.num_output_tokens.tolist() == workload.max_output_tokens.tolist() == [5, 1]
    assert [prefix.tolist() for prefix in workload.prefixes] == [[3, 9], []]


def test_mooncakes_own_file_and_its_csv_are_one_workload(tmp_path: Path) -> None:
    lines, rows = tmp_path / "trace.jsonl", tmp_path / "trace.csv"
    lines.write_text('{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [3, 9]}\n')
    rows.write_text(HEADER + "r1,0.0,600,5,,3 9\n")

    assert [prefix.tolist() for prefix in read_workload(lines).prefixes] == [[3, 9]]
    for column in ("ids", "arrival_us", "num_prompt_tokens", "num_output_tokens", "tenant"):
        assert list(getattr(read_workload(lines), column)) == list(getattr(read_workload(rows), column))


@pytest.mark.parametrize("name", ["azure_2023_conv_code", "mooncake_conversation"])
def test_the_excerpts_of_published_traces_are_read(name: str) -> None:
    workload = read_workload(TRACES / f"{name}.csv")

    assert len(workload) in (500, 1000)
    assert (np.diff(workload.arrival_us) >= 0).all()


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ("a,x,10,5,,", "line 2: arrival_s is 'x', and no number"),
        ("a,nan,10,5,,", "line 2: an arrival at nan s is out of range"),
        ("a,-1,10,5,,", "line 2: an arrival at -1 s is out of range"),
        ("a,1e300,10,5,,", "is out of range"),
        ("a,0,0,5,,", "line 2: a prompt and an answer have at least one token"),
        ("a,0,10,-5,,", "line 2: a prompt and an answer have at least one token"),
        ("a,0,1.5,5,,", "line 2: prompt_tokens is '1.5', and no whole number"),
        ("a,0,10", "line 2: not as many fields as the header has"),
        ("a,0,10,5,,,,", "line 2: not as many fields as the header has"),
        ("a,0,10,5,,1 2", "line 2: 2 blocks of 512 tokens are more than the prompt has"),
        ("a,0,10,5,,99999999999", "line 2: a block id is out of range"),
        ("a,0,9999999999,5,,", "request 1: a prompt of 9999999999 is out of range"),
    ],
)
def test_a_row_that_is_none_is_named(row: str, fault: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(HEADER + row + "\n")

    with pytest.raises(LabError, match=fault):
        read_workload(path)


@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        ("empty.csv", "", "has no column arrival_s"),
        ("nobody.csv", HEADER, "holds no requests"),
        ("short.csv", "arrival_s,prompt_tokens\n0,1\n", "has no column output_tokens"),
        ("binary.csv", b"\xff\xfe\x00", "is not UTF-8 text"),
        ("trace.txt", "", "is no trace"),
        ("list.jsonl", "[1]\n", "line 1: needs timestamp, input_length and output_length"),
        ("broken.jsonl", "{\n", "line 1: no JSON"),
        ("half.jsonl", '{"timestamp": 0, "input_length": 1.5, "output_length": 1}\n', "no whole number"),
        ("nothing.toml", "", "num_requests is None"),
        ("broken.toml", "=", "Invalid"),
    ],
)
def test_a_file_that_is_no_workload_is_refused(name: str, content: str | bytes, fault: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())

    with pytest.raises(LabError, match=fault):
        read_workload(path)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="cannot read"):
        read_workload(tmp_path / "none.csv")


STREAM = {
    "arrivals": {"kind": "poisson", "rate": 5.0},
    "prompt_tokens": {"kind": "fixed", "tokens": 700},
    "output_tokens": {"kind": "fixed", "tokens": 5},
}


@pytest.mark.parametrize(
    ("arrivals", "rate", "cv"),
    [
        ({"kind": "poisson", "rate": 5.0}, 5.0, 1.0),
        ({"kind": "gamma", "rate": 5.0, "cv": 3.0}, 5.0, 3.0),
        ({"kind": "gamma", "rate": 5.0, "cv": 0.5}, 5.0, 0.5),
        ({"kind": "on_off", "rate": 20.0, "on_s": 5.0, "off_s": 15.0}, 5.0, None),
        ({"kind": "diurnal", "rate": 5.0, "swing": 0.8, "period_s": 100.0}, 5.0, None),
    ],
    ids=["poisson", "gamma bursts", "gamma even", "on_off", "diurnal"],
)
def test_arrivals_have_the_rate_that_was_asked_for(arrivals: dict[str, float], rate: float, cv: float | None) -> None:
    workload = generate({"num_requests": 20_000, "streams": [STREAM | {"arrivals": arrivals}]}, name="drawn", seed=1)

    gaps = np.diff(workload.arrival_us) / 1e6
    assert 1 / gaps.mean() == pytest.approx(rate, rel=0.1)
    if cv is not None:
        assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.1)
    else:
        per_span = np.bincount(workload.arrival_us // 5_000_000)
        assert per_span.std() / per_span.mean() > 0.4  # 0.2 where they came evenly


@pytest.mark.parametrize(
    ("lengths", "median", "most"),
    [
        ({"kind": "fixed", "tokens": 7}, 7, 7),
        ({"kind": "uniform", "least": 10, "most": 20}, 15, 20),
        ({"kind": "lognormal", "median": 100, "sigma": 1.0, "most": 5000}, 100, 5000),
        ({"kind": "pareto", "least": 20, "alpha": 1.0, "most": 10_000}, 40, 10_000),
    ],
    ids=lambda value: value["kind"] if isinstance(value, dict) else str(value),
)
def test_lengths_are_as_asked_for(lengths: dict[str, float], median: int, most: int) -> None:
    workload = generate({"num_requests": 20_000, "streams": [STREAM | {"output_tokens": lengths}]}, name="", seed=1)

    assert np.median(workload.num_output_tokens) == pytest.approx(median, rel=0.05)
    assert 1 <= workload.num_output_tokens.min() <= workload.num_output_tokens.max() <= most


def test_streams_share_their_beginnings_and_the_seed_tells_workloads_apart() -> None:
    streams = [STREAM | {"tenant": "a", "shared_prefix_tokens": 1024, "priority": 2}, STREAM | {"tenant": "b"}]
    first, second = (generate({"num_requests": 50, "streams": streams}, name="", seed=seed) for seed in (1, 2))

    prefixes = {
        (first.tenants[tenant], tuple(prefix.tolist()))
        for tenant, prefix in zip(first.tenant.tolist(), first.prefixes, strict=True)
    }
    assert prefixes == {("a", (0, 1)), ("b", ())}
    assert set(zip(first.tenant.tolist(), first.priority.tolist(), strict=True)) == {(0, 2), (1, 0)}
    assert first.arrival_us.tolist() != second.arrival_us.tolist()


def test_a_stream_has_a_deadline_after_the_arrival_at_any_rate() -> None:
    streams = [STREAM | {"tenant": "a", "deadline_s": 2.5}, STREAM | {"tenant": "b"}]
    workload = generate({"num_requests": 50, "streams": streams}, name="", seed=1).at_rate(4).part(5, None)

    deadlines = zip(workload.tenant.tolist(), workload.deadline_us.tolist(), strict=True)
    assert set(deadlines) == {(0, 2_500_000), (1, 0)}


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"arrivals": {"kind": "comet"}}, "arrivals needs a kind"),
        ({"arrivals": {"kind": "poisson", "rate": 0}}, "rate is 0"),
        ({"arrivals": {"kind": "poisson", "rate": float("nan")}}, "rate is nan"),
        ({"arrivals": {"kind": "poisson", "rate": 1, "cv": 2}}, "unknown key 'cv'"),
        ({"arrivals": {"kind": "diurnal", "rate": 1, "swing": 2, "period_s": 1}}, "contradict"),
        ({"prompt_tokens": {"kind": "uniform", "least": 5, "most": 4}}, "contradict"),
        ({"shared_prefix_tokens": -1}, "out of range"),
        ({"tenant": 5}, "tenant is a text"),
        ({"deadline_s": -1}, "deadline_s is -1"),
        ({"deadline_s": True}, "deadline_s is True"),
        ({"colour": 5}, "unknown key 'colour'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_a_stream_that_makes_no_sense_is_refused(change: dict[str, object], fault: str) -> None:
    with pytest.raises(LabError, match=fault):
        generate({"num_requests": 10, "streams": [STREAM | change]}, name="", seed=0)


@pytest.mark.parametrize("path", sorted(WORKLOADS.glob("*.toml")), ids=lambda path: path.stem)
def test_the_workloads_of_the_documentation_are_drawn(path: Path) -> None:
    assert len(read_workload(path)) >= 1000


def test_a_part_begins_at_its_first_arrival_and_a_rate_presses_arrivals_together() -> None:
    workload = workload_of((0, 1, 1), (100, 2, 2), (300, 3, 3))

    part = workload.part(1, None)

    assert (part.arrival_us.tolist(), list(part.ids)) == ([0, 200_000], ["2", "3"])
    assert part.at_rate(4).arrival_us.tolist() == [0, 50_000]
    with pytest.raises(LabError, match="none of them"):
        workload.part(3, None)
    for rate in (0.0, -1.0, 1e9, float("nan")):
        with pytest.raises(LabError, match="rate"):
            workload.at_rate(rate)


def test_what_is_expected_is_exact_wrong_or_unknown() -> None:
    workload = drawn_workload(500, mean_gap_ms=1).bounded_by(100_000)
    assert (workload.expected_output_tokens == workload.num_output_tokens).all()
    assert (workload.without_estimates().expected_output_tokens == 0).all()

    ratio = workload.with_estimates_off_by(0.5, seed=1).expected_output_tokens / workload.num_output_tokens

    assert np.log(ratio).std() == pytest.approx(0.5, rel=0.15)


@pytest.mark.parametrize("name", hardware_names())
def test_a_hardware_profile_is_written_as_it_is_read(name: str, tmp_path: Path) -> None:
    hardware = load_hardware(name)
    path = tmp_path / f"{name}.toml"

    write_hardware(hardware, path)

    assert load_hardware(str(path)) == hardware
    assert hardware.sources


def test_hardware_may_have_other_limits() -> None:
    hardware = load_hardware("a100-80gb-llama3-8b")

    changed = with_limits(hardware, ["num_blocks=1000", "max_num_waiting=5"])

    assert changed == replace(hardware, limits=replace(hardware.limits, num_blocks=1000, max_num_waiting=5))


@pytest.mark.parametrize(
    ("setting", "fault"),
    [
        ("num_blocks=0", "num_blocks is 0"),
        ("num_blocks=many", "num_blocks is 'many'"),
        ("num_blocks", "num_blocks is ''"),
        ("colour=5", "limit: unknown key 'colour'"),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused(setting: str, fault: str) -> None:
    with pytest.raises(LabError, match=fault):
        with_limits(load_hardware("a100-80gb-llama3-8b"), [setting])


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("description = 5", "needs a text"),
        ('description = ""\nsources = []\n[latency]\npass_us = -1', "latency.pass_us is -1"),
        ('description = ""\nsources = []\n[latency]\nspeed = 1', "unknown key 'speed'"),
        ('description = ""\nsources = []', "pass_us is 0"),
        ('description = ""\nsources = []\n[latency]\npass_us = 1', "max_num_batched_tokens is None"),
        ('description = ""\nsources = []\n[executor]\nprefix_scope = "ALL"', "prefix_scope is 'ALL'"),
        ("[", "Invalid|Expected|Unexpected"),
    ],
)
def test_a_hardware_profile_that_makes_no_sense_is_refused(content: str, fault: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(content)

    with pytest.raises(LabError, match=fault):
        load_hardware(str(path))
