"""What passes cost beyond a latency model: fitted, written, and learnt by a simulated executor."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from executor_service.engine.latency import num_attended_tokens
from metronome_lab.errors import LabError
from metronome_lab.hardware.cost import MIN_OF_A_KIND, MeasuredPasses, PassCost, fit_pass_cost
from metronome_lab.hardware.profile import load_hardware, write_hardware
from metronome_lab.hardware.spread import SHARES
from metronome_lab.policies import named_policy
from metronome_lab.records import Records
from metronome_lab.simulated.executor import SimulatedExecutor
from metronome_lab.simulated.planners import CorePlanner
from metronome_lab.simulation import FOREVER_US, Fleet, simulate
from support.lab import LATENCY, hardware_of, workload_of

COST = PassCost(
    pass_us=2000.0,
    prefill_token_us=30.0,
    decode_request_us=40.0,
    kv_token_us=0.5,
    swap_block_us=20.0,
    chunk_kv_token_us=0.1,
    logits_group_us=300.0,
    logits_group=8,
)
FIFO = named_policy("fifo")


def passes_of(cost: PassCost, count: int = 400, *, num_alone: int = 0, pause_every: int = 0) -> MeasuredPasses:
    """`num_alone`: of the first, each holds one decode. `pause_every`: so many passes have one after a pause."""
    draw = np.random.default_rng(3)
    prefill, decodes = draw.integers(0, 200, count), draw.integers(0, 40, count)
    prefill[:num_alone], decodes[:num_alone] = 0, 1
    rows = decodes + np.where(prefill > 0, draw.integers(0, 4, count), 0)  # prompts end in some passes
    after_pause = np.arange(count) % pause_every == 0 if pause_every else np.zeros(count, dtype=bool)
    kv, chunk_kv = decodes * draw.integers(10, 900, count), prefill * draw.integers(10, 900, count)
    times = [
        cost.time_us(
            num_prefill_tokens=int(prefill[i]),
            num_decodes=int(decodes[i]),
            num_logits_rows=int(rows[i]),
            num_kv_tokens=int(kv[i]),
            num_chunk_kv_tokens=int(chunk_kv[i]),
            is_after_pause=bool(after_pause[i]),
        )
        for i in range(count)
    ]
    return MeasuredPasses(
        num_prefill_tokens=prefill,
        num_decodes=decodes,
        num_logits_rows=rows,
        num_kv_tokens=kv,
        num_chunk_kv_tokens=chunk_kv,
        are_after_pauses=after_pause,
        times_us=np.array(times),
    )


@pytest.mark.parametrize("group", [1, 8, 16])
def test_costs_are_found_from_passes(group: int) -> None:
    true = replace(COST, logits_group=group)
    found = fit_pass_cost(passes_of(true), swap_block_us=20.0)
    assert found.logits_group == group
    names = ("pass_us", "prefill_token_us", "decode_request_us", "kv_token_us", "chunk_kv_token_us", "logits_group_us")
    for name in names:
        assert getattr(found, name) == pytest.approx(getattr(true, name), rel=0.02), name


def test_what_a_prompt_that_ends_costs_is_not_taken_for_what_a_pause_costs() -> None:
    """What comes after a pause is a prompt that is alone and ends: of its time a good part is the output layer's."""
    true = replace(COST, logits_group_us=20_000.0)
    passes = passes_of(true, 600)
    alone = np.arange(600) % 10 == 0
    prefill = np.where(alone, 30, passes.num_prefill_tokens)
    decodes, rows = (np.where(alone, few, many) for few, many in ((0, passes.num_decodes), (1, passes.num_logits_rows)))
    others = {"num_kv_tokens": passes.num_kv_tokens, "num_chunk_kv_tokens": passes.num_chunk_kv_tokens}
    held = {"num_prefill_tokens": prefill, "num_decodes": decodes, "num_logits_rows": rows, **others}
    times_us = [true.time_us(**{name: int(of[i]) for name, of in held.items()}) for i in range(600)]
    found = fit_pass_cost(
        MeasuredPasses(**held, are_after_pauses=alone, times_us=np.array(times_us)), swap_block_us=0.0
    )
    assert found.after_pause_us < 0.01 * true.logits_group_us
    assert found.logits_group_us == pytest.approx(true.logits_group_us, rel=0.02)


def test_passes_that_were_disturbed_take_as_long_together() -> None:
    passes = passes_of(COST)
    late = np.where(np.arange(len(passes.times_us)) % 10 == 0, 3, 1)
    disturbed = replace(passes, times_us=passes.times_us * late)
    found = fit_pass_cost(disturbed, swap_block_us=0.0)
    assert passes_of(found).times_us.sum() == pytest.approx(disturbed.times_us.sum(), rel=0.001)


def test_what_several_tokens_and_pauses_cost_is_found_from_passes_that_vary() -> None:
    true = replace(COST, several_tokens_us=1500.0, after_pause_us=4000.0)
    passes = passes_of(true, 4000, num_alone=1500, pause_every=10)
    ratios = np.random.default_rng(7).lognormal(0.0, 0.08, 4000)
    varied = replace(passes, times_us=np.rint(passes.times_us * ratios).astype(np.int64))
    found = fit_pass_cost(varied, swap_block_us=20.0)
    assert found.several_tokens_us == pytest.approx(1500.0, rel=0.1)
    assert found.after_pause_us == pytest.approx(4000.0, rel=0.1)
    assert found.pass_us == pytest.approx(true.pass_us, rel=0.1)
    assert found.ratio_quantiles == pytest.approx(np.quantile(ratios / ratios.mean(), SHARES), rel=0.02)


@pytest.mark.parametrize("count", [0, MIN_OF_A_KIND - 1])
def test_a_few_passes_do_not_tell_what_their_kind_costs(count: int) -> None:
    passes = passes_of(replace(COST, several_tokens_us=1500.0), num_alone=count)
    after_pauses = np.arange(len(passes.times_us)) < count
    times_us = np.where(after_pauses, 3, 1) * passes.times_us
    found = fit_pass_cost(replace(passes, are_after_pauses=after_pauses, times_us=times_us), swap_block_us=20.0)
    assert (found.several_tokens_us, found.after_pause_us) == (0.0, 0.0)


def test_a_profile_with_costs_is_read_as_it_was_written(tmp_path: Path) -> None:
    hardware = replace(hardware_of(), cost=COST)
    write_hardware(hardware, tmp_path / "mine.toml")
    read = load_hardware(str(tmp_path / "mine.toml"))
    assert (read.cost, read.latency, read.limits) == (COST, hardware.latency, hardware.limits)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("logits_group = 0", "logits_group is 0"),
        ("logits_group_us = -1", "cost.logits_group_us is -1"),
        ("pass_us = 0", "cost.pass_us is 0"),
        ("prefil_token_us = 3", "unknown key 'prefil_token_us'"),
    ],
)
def test_costs_that_cannot_be_are_refused(line: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    write_hardware(hardware_of(), path)
    rest = "" if line.startswith("pass_us") else "pass_us = 5\n"
    path.write_text(path.read_text() + f"\n[cost]\n{rest}{line}\n")
    with pytest.raises(LabError, match=message):
        load_hardware(str(path))


def test_it_tells_what_it_learnt_and_its_passes_take_what_they_cost() -> None:
    workload = workload_of((0, 100, 40), (5, 60, 40))
    hardware = replace(hardware_of(), cost=COST)
    records = Records(workload)
    executor = SimulatedExecutor(0, hardware, CorePlanner(FIFO), records, policy=FIFO)
    before = executor.state().latency
    for index in range(len(workload)):
        executor.advance(int(workload.arrival_us[index]))
        executor.submit(index)
    executor.advance(FOREVER_US)
    after = executor.state().latency
    assert before is not None
    assert after is not None
    assert LATENCY not in (before, after)
    assert before != after
    # One or two that decode are a group; each reads what it has.
    passes = records.iterations.columns()
    decode = passes["num_prefill_tokens"] == 0
    least = COST.pass_us + COST.logits_group_us + COST.decode_request_us * passes["num_decode_tokens"][decode]
    extra = (passes["duration_us"][decode] - least) / COST.kv_token_us
    assert (extra >= 60).all()
    assert (extra <= 240 + 1).all()


def test_the_end_of_a_prompt_costs_more_than_its_beginning() -> None:
    hardware = replace(hardware_of(max_model_len=2000, num_blocks=200), cost=replace(COST, chunk_kv_token_us=1.0))
    passes = simulate(workload_of((0, 1024, 1)), Fleet(hardware=hardware), FIFO).iterations.columns()
    assert passes["num_prefill_tokens"].tolist() == [128] * 8
    # Each chunk attends to 128 * 128 more than the one before it, and the last has a row of logits.
    assert np.diff(passes["duration_us"]).tolist() == [128 * 128] * 6 + [128 * 128 + COST.logits_group_us]


def test_attended_tokens_are_counted_one_by_one() -> None:
    chunks, ends = np.array([3, 1, 5], dtype=np.int32), np.array([3, 10, 7], dtype=np.int32)
    one_by_one = sum(
        position + 1
        for chunk, end in zip(chunks.tolist(), ends.tolist(), strict=True)
        for position in range(end - chunk, end)
    )
    assert num_attended_tokens(chunks, ends) == one_by_one
    assert num_attended_tokens(chunks[:0], ends[:0]) == 0
