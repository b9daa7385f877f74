"""The pictures of docs/policies.md, from real plans: `make pictures`.

Excerpts of a published trace are played on the arithmetic executor of the tests, in virtual time, at 1.2 times what it
can do unless a picture says otherwise; nothing is drawn that was not planned. `--only` names the pictures to draw.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from drawing import BLUE, GREEN, GREY, ORANGE, PINK, dots, panels, save, steps
from plays import (
    BLOCKS_SCARCE,
    BLOCKS_SHORT,
    FIFO,
    PLACES_SHORT,
    TOKENS_SHORT,
    Beginnings,
    Story,
    burst,
    executor_with,
    loaded,
    placed,
    story,
)
from scheduler_service.core.placement import Placement
from scheduler_service.core.policy import (
    Admission,
    BatchComposition,
    Eviction,
    HeadOfLine,
    Ordering,
    Policy,
    Preemption,
    PrefillSharing,
    Victim,
)
from scheduler_service.core.state import RequestStatus
from support.traces import TraceRequest, at_load

OUT = Path(__file__).parents[1] / "images" / "policies"
NO_AGING_SECONDS = 1e6

Classes = tuple[tuple[str, str, Callable[[TraceRequest], bool]], ...]

BY_SERVICE: Classes = (
    ("conversation", BLUE, lambda request: request.tenant == 1),
    ("code completion", ORANGE, lambda request: request.tenant == 0),
)
BY_PRIORITY: Classes = (
    ("priority 0", BLUE, lambda request: request.priority == 0),
    ("priority 1", GREEN, lambda request: request.priority == 1),
    ("priority 2", ORANGE, lambda request: request.priority == 2),
)
BY_LENGTH: Classes = (
    ("up to 2,000 tokens", BLUE, lambda request: request.num_prompt_tokens + request.num_output_tokens <= 2000),
    ("more", ORANGE, lambda request: request.num_prompt_tokens + request.num_output_tokens > 2000),
)
BY_DEADLINE: Classes = (
    ("deadline 1.5 s after arrival", ORANGE, lambda request: request.deadline_us > 0),
    ("no deadline", BLUE, lambda request: request.deadline_us == 0),
)


def _waits(panel: Axes, story: Story, classes: Classes) -> None:
    for label, colour, belongs in classes:
        chosen = [request for request in story.trace if belongs(request) and request.id in story.waits_s]
        arrivals = [request.arrival_us / 1e6 for request in chosen]
        # No less than can be told apart on a logarithmic scale.
        dots(panel, arrivals, [max(story.waits_s[request.id], 1e-3) for request in chosen], colour, label)


def _waiting_picture(titles: list[str], stories: Iterable[Story], classes: Classes) -> Axes:
    axes = panels(titles, "arrival, s", "waits, s")
    for panel, told in zip(axes, stories, strict=True):
        _waits(panel, told, classes)
    return axes[0]


def ordering_fifo() -> Axes:
    return _waiting_picture(["FIFO"], [story(loaded(PLACES_SHORT), PLACES_SHORT, FIFO)], BY_SERVICE)


def ordering_shortest_job_first() -> Axes:
    policies = [
        replace(FIFO, ordering=Ordering.SHORTEST_JOB_FIRST, aging_seconds=aging) for aging in (NO_AGING_SECONDS, 0.5)
    ]
    stories = [story(loaded(PLACES_SHORT), PLACES_SHORT, policy) for policy in policies]
    return _waiting_picture(["SHORTEST_JOB_FIRST without aging", "aging_seconds 0.5"], stories, BY_LENGTH)


def ordering_priority() -> Axes:
    policies = [replace(FIFO, ordering=Ordering.PRIORITY, aging_seconds=aging) for aging in (NO_AGING_SECONDS, 2.0)]
    stories = [story(loaded(PLACES_SHORT), PLACES_SHORT, policy) for policy in policies]
    return _waiting_picture(["PRIORITY without aging", "aging_seconds 2"], stories, BY_PRIORITY)


def ordering_earliest_deadline_first() -> Axes:
    trace = tuple(replace(r, deadline_us=1_500_000 * (r.id % 3 == 0)) for r in loaded(PLACES_SHORT))
    policies = (FIFO, replace(FIFO, ordering=Ordering.EARLIEST_DEADLINE_FIRST))
    stories = [story(trace, PLACES_SHORT, policy) for policy in policies]
    return _waiting_picture(["FIFO", "EARLIEST_DEADLINE_FIRST"], stories, BY_DEADLINE)


def ordering_fair() -> Axes:
    policies = (FIFO, replace(FIFO, ordering=Ordering.FAIR))
    stories = [story(loaded(PLACES_SHORT), PLACES_SHORT, policy) for policy in policies]
    return _waiting_picture(["FIFO", "FAIR, equal weights"], stories, BY_SERVICE)


def kv_residency_charge() -> Axes:
    """Where blocks are short: a conversation holds its blocks for many passes, code completion for few."""
    base = Policy(ordering=Ordering.FAIR, eviction=Eviction.RECOMPUTE)
    charge = BLOCKS_SHORT.max_num_batched_tokens / BLOCKS_SHORT.num_blocks
    axes = panels(["tokens alone", f"kv_residency_charge {charge:g}"], "time, s", "blocks held, %")
    for panel, policy in zip(axes, (base, replace(base, kv_residency_charge=charge)), strict=True):
        passes = story(loaded(BLOCKS_SHORT), BLOCKS_SHORT, policy).passes
        every = slice(None, None, max(len(passes) // 250, 1))
        times, bottom = [done.ended_s for done in passes[every]], np.zeros(len(passes[every]))
        for label, colour, tenant in (("conversation", BLUE, 1), ("code completion", ORANGE, 0)):
            held = np.array([done.num_blocks_of[tenant] for done in passes[every]])
            top = bottom + 100 * held / BLOCKS_SHORT.num_blocks
            panel.fill_between(times, bottom, top, color=colour, alpha=0.6, linewidth=0, label=label)
            bottom = top
    return axes[0]


def hold_for_shared_prefix() -> Axes:
    """Sixteen requests that begin with the same 1,536 tokens come at once, to the real engine."""
    axes = panels(["each by itself", "hold_for_shared_prefix"], "pass", "prefill tokens")
    for panel, hold in zip(axes, (False, True), strict=True):
        prefills = [done.num_prefill_tokens for done in burst(Policy(hold_for_shared_prefix=hold), 16, 1536, 64)]
        steps(panel, prefills[:6], BLUE, "")
        panel.set_title(f"{panel.get_title(loc='left')}: {sum(prefills):,} tokens", loc="left", fontsize=9)
    return axes[0]


def head_of_line() -> Axes:
    policies = [replace(FIFO, head_of_line=rule, max_times_overtaken=4) for rule in HeadOfLine]
    stories = [story(loaded(BLOCKS_SHORT), BLOCKS_SHORT, policy) for policy in policies]
    return _waiting_picture(["STRICT", "SKIP, at most 4 times", "BACKFILL"], stories, BY_LENGTH)


def preemption() -> Axes:
    base = Policy(ordering=Ordering.PRIORITY, aging_seconds=NO_AGING_SECONDS, eviction=Eviction.RECOMPUTE)
    policies = (base, replace(base, preemption=Preemption.FOR_PRIORITY))
    stories = [story(loaded(PLACES_SHORT), PLACES_SHORT, policy) for policy in policies]
    panel = _waiting_picture(["WHEN_FULL", "FOR_PRIORITY"], stories, BY_PRIORITY)
    panel.set_yscale("log")
    panel.set_ylim(1e-3, 30)
    return panel


def admission() -> Axes:
    """Answers may have 1,024 tokens and are expected to be as long as those of their service are on the mean."""
    trace = loaded(BLOCKS_SCARCE)
    means = {
        tenant: round(float(np.mean([r.num_output_tokens for r in trace if r.tenant == tenant]))) for tenant in (0, 1)
    }
    trace = tuple(replace(r, max_output_tokens=1024, expected_output_tokens=means[r.tenant]) for r in trace)
    axes = panels([choice.name for choice in Admission], "time, s", "blocks in use, %")
    for panel, choice in zip(axes, Admission, strict=True):
        told = story(trace, BLOCKS_SCARCE, Policy(admission=choice, watermark=0.0, eviction=Eviction.RECOMPUTE))
        times = [done.ended_s for done in told.passes]
        used = [100 * done.num_blocks / BLOCKS_SCARCE.num_blocks for done in told.passes]
        every = slice(None, None, max(len(times) // 250, 1))
        panel.fill_between(times[every], used[every], color=BLUE, alpha=0.4, linewidth=0, label="blocks in use")
        evicting = [(done.ended_s, share) for done, share in zip(told.passes, used, strict=True) if done.num_evicted]
        dots(panel, [at for at, _ in evicting], [share for _, share in evicting], ORANGE, "eviction")
        num_evictions = sum(done.num_evicted for done in told.passes)
        panel.set_title(f"{choice.name}: {told.seconds:.0f} s, {num_evictions} evictions", loc="left")
        panel.set_ylim(0, 105)
    return axes[0]


def victim() -> Axes:
    trace = tuple(replace(r, max_output_tokens=1024) for r in loaded(BLOCKS_SCARCE))
    (panel,) = panels(["Tokens computed again"], "thousand tokens", "")
    for choice, colour in zip(Victim, (BLUE, ORANGE), strict=True):
        told = story(trace, BLOCKS_SCARCE, Policy(victim=choice, watermark=0.0, eviction=Eviction.RECOMPUTE))
        needed = sum(r.num_prompt_tokens + r.num_output_tokens - 1 for r in trace)
        again = sum(done.num_prefill_tokens + done.num_decode_tokens for done in told.passes) - needed
        panel.barh(choice.name, again / 1e3, color=colour)
    return panel


def batch_composition() -> Axes:
    """Conversations only: so that prompts leave the budget to others now and then."""
    trace = [request for request in loaded(TOKENS_SHORT) if request.tenant == 1][:60]
    trace = at_load(tuple(trace), 1.0, executor_with(TOKENS_SHORT, FIFO))
    axes = panels([choice.name for choice in BatchComposition], "pass", "tokens", num_columns=2)
    for panel, choice in zip(axes, BatchComposition, strict=True):
        shown = story(trace, TOKENS_SHORT, Policy(batch_composition=choice)).passes[100:600]
        steps(panel, [done.num_prefill_tokens for done in shown], BLUE, "prefill tokens")
        steps(panel, [done.num_decode_tokens for done in shown], ORANGE, "decode tokens")
        panel.set_yscale("symlog", linthresh=1)
        panel.set_yticks([0, 1, 10, 100], ["0", "1", "10", "100"])
    return axes[0]


def chunk_size() -> Axes:
    trace = loaded(PLACES_SHORT, 0.9)
    (panel,) = panels(["Inter-token latency by chunk size"], "at least, ms", "share of tokens")
    choices = {f"{size} tokens": Policy(chunk_size_tokens=size) for size in (256, 512, 2048)}
    choices["target 20 ms"] = Policy(chunk_size_tokens=2048, target_inter_token_latency_us=20_000)
    for (label, policy), colour in zip(choices.items(), (BLUE, GREEN, ORANGE, PINK), strict=True):
        gaps = np.sort(story(trace, PLACES_SHORT, policy).gaps_ms)
        share = 1 - np.arange(len(gaps)) / len(gaps)
        every = np.unique(np.concatenate([np.linspace(0, len(gaps) - 1, 150), len(gaps) - np.geomspace(1, 300, 60)]))
        panel.plot(gaps[every.astype(int)], share[every.astype(int)], color=colour, label=label)
    panel.set_yscale("log")
    panel.set_ylim(1e-3, 1.1)
    panel.set_xlim(0, 60)
    return panel


def prefill_sharing() -> Axes:
    """The longest has begun when the others arrive."""
    prompts = (6000, 3000, 1500, 700)
    axes = panels([choice.name for choice in PrefillSharing], "pass", "tokens of the prompt")
    for panel, choice in zip(axes, PrefillSharing, strict=True):
        limits = replace(PLACES_SHORT, max_num_batched_tokens=1024)
        policy = Policy(ordering=Ordering.SHORTEST_PREFILL_FIRST, prefill_sharing=choice, chunk_size_tokens=1024)
        executor = executor_with(limits, policy)
        for id, prompt in enumerate(prompts, 1):
            begun = {"status": RequestStatus.RUNNING, "num_computed_tokens": 16, "num_blocks": 1} if id == 1 else {}
            executor.submit(id, prompt=prompt, new=1, **begun)
        executor.run()
        for id, colour in zip(range(1, 5), (BLUE, GREEN, ORANGE, PINK), strict=True):
            computed = np.cumsum(executor.tokens_of(id)) + (16 if id == 1 else 0)
            label = f"prompt of {prompts[id - 1]:,}"
            panel.plot(np.arange(1, len(computed) + 1), computed, color=colour, marker="o", markersize=2.5, label=label)
    return axes[0]


def surge() -> Axes:
    (panel,) = panels(["Queue under overload"], "time, s", "requests that wait")
    for limit, colour in ((None, GREY), (16, BLUE)):
        policy = replace(FIFO, max_num_waiting=limit)
        told = story(loaded(PLACES_SHORT, 1.5), PLACES_SHORT, policy)
        label = "no limit" if limit is None else f"max_num_waiting {limit}: {len(told.executor.rejected)} rejected"
        every = slice(None, None, max(len(told.passes) // 500, 1))
        times, waiting = [done.ended_s for done in told.passes], [done.num_waiting for done in told.passes]
        panel.plot(times[every], waiting[every], color=colour, label=label)
    return panel


def placement() -> Axes:
    """Four executors at what they can do; every quarter of a second those that have come are placed."""
    limits = replace(PLACES_SHORT, max_num_seqs=8)
    trace = at_load(loaded(PLACES_SHORT), 4.0, executor_with(limits, FIFO))
    shown = (Placement.ROUND_ROBIN, Placement.POWER_OF_TWO_CHOICES, Placement.LEAST_LOADED)
    axes = panels([choice.name for choice in shown], "time, s", "thousand tokens to go")
    for panel, choice in zip(axes, shown, strict=True):
        times, to_go, _ = placed(trace, limits, choice)
        _work_left(panel, times, to_go)
    return axes[0]


def placement_cached_prefix() -> Axes:
    """Each begins with one of twelve system prompts of 1,024 tokens; an executor keeps the four that it used last."""
    limits = replace(PLACES_SHORT, max_num_seqs=8)
    trace = at_load(loaded(PLACES_SHORT), 2.0, executor_with(limits, FIFO))
    num_prompt_tokens = sum(request.num_prompt_tokens for request in trace)
    shown = (Placement.LEAST_LOADED, Placement.CACHED_PREFIX)
    axes = panels([choice.name for choice in shown], "time, s", "thousand tokens to go")
    for panel, choice in zip(axes, shown, strict=True):
        beginnings = Beginnings(num_prompts=12, num_tokens=1024, num_kept=4)
        times, to_go, num_saved = placed(trace, limits, choice, beginnings)
        _work_left(panel, times, to_go)
        panel.set_title(f"{choice.name}: {num_saved / num_prompt_tokens:.0%} cached", loc="left")
    return axes[0]


def _work_left(panel: Axes, times: list[float], to_go: list[list[float]]) -> None:
    for number, colour in enumerate((BLUE, GREEN, ORANGE, PINK)):
        panel.plot(times, [left[number] for left in to_go], color=colour, label=f"executor {number}")


PICTURES: tuple[Callable[[], Axes], ...] = (
    ordering_fifo,
    ordering_shortest_job_first,
    ordering_priority,
    ordering_earliest_deadline_first,
    ordering_fair,
    kv_residency_charge,
    admission,
    preemption,
    victim,
    batch_composition,
    chunk_size,
    prefill_sharing,
    head_of_line,
    hold_for_shared_prefix,
    surge,
    placement,
    placement_cached_prefix,
)


def main() -> int:
    args = _arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    for draw in PICTURES:
        if draw.__name__ in args.only:
            path = args.out / f"{draw.__name__}.svg"
            save(draw(), path)
            print(f"{path}: {path.stat().st_size / 1024:.0f} KiB", flush=True)
    return 0


def _arguments() -> argparse.Namespace:
    names = [draw.__name__ for draw in PICTURES]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=names, default=names)
    parser.add_argument("--out", type=Path, default=OUT, help="where to write them")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
