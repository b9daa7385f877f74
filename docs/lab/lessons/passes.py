"""What a pass holds: what docs/policies.md says of phases that share it, of prompts side by side, and of its bounds."""

from __future__ import annotations

from dataclasses import replace

from claims import AZURE, WORKLOADS, Claim, Played, compare, tenant, write_claims
from metronome_lab.report.charts import Chart, latency_distributions

WORDS = """
What shares a pass, on Llama 3.1 8B and one A100 with a token budget of 2,048, at about its capacity. Goodput counts
first tokens within 2 s and 100 ms between tokens. The size of chunks alone: [a long prompt, in one piece and in
chunks](chunks.md); batches over time: [what batches are made of](phases.md).
"""
MIX = f"{AZURE} --requests 300 --rate 0.2"
SHOWN = (
    "requests/s",
    "TTFT mean / p50 / p99, ms",
    "ITL mean / p50 / p99, ms",
    "longest between tokens, ms",
    "goodput, requests/s",
)
MIXED, PREFILL_FIRST, DECODE_FIRST, SEPARATE = (
    f"batch_composition={name}" for name in ("MIXED", "PREFILL_FIRST", "DECODE_FIRST", "SEPARATE")
)
COMPOSITION = Claim(
    title="Both phases or one",
    words="""
Prefills first, or alone, have first tokens a few percent sooner, and pay with answers that stop for as long as
prompts keep coming: half a minute here, where MIXED never stops longer than one full pass. DECODE_FIRST has the most
even answers and the least done: newcomers wait for a whole batch to end.
""",
    plays={"": compare(MIX, MIXED, PREFILL_FIRST, DECODE_FIRST, SEPARATE)},
    shown=SHOWN,
    holds=lambda rows: (
        all(
            0.8 * rows[MIXED].ttft.mean_ms < rows[policy].ttft.mean_ms < rows[MIXED].ttft.mean_ms
            and rows[policy].longest_gap_ms > 50 * rows[MIXED].longest_gap_ms
            for policy in (PREFILL_FIRST, SEPARATE)
        )
        and rows[DECODE_FIRST].requests_per_s < 0.5 * rows[MIXED].requests_per_s
        and rows[DECODE_FIRST].longest_gap_ms < rows[MIXED].longest_gap_ms
    ),
)
WHOLE, CHUNKS = "chunk_size_tokens=2048", "chunk_size_tokens=512"
ALIKE = "prefill_sharing=EQUAL"
BOUNDED = f"{CHUNKS},target_inter_token_latency_us=50000"
ONE, TWO = (f"{CHUNKS},max_num_partial_prefills={count}" for count in (1, 2))
SIDE_BY_SIDE = Claim(
    title="Prompts side by side",
    words="""
A long prompt in chunks as large as the pass has the pass to itself, and short ones wait until it is done. In chunks
of a quarter of the pass three others go on beside it: short prompts wait for a third of the time and less, the long
ones longer. With fewer prompts at once (`max_num_partial_prefills`) those that decode pause for fewer chunks, down to
one, and short prompts wait behind the long one again; so they do under a target, which makes passes small for all.
EQUAL has short prompts go on beside the long one whatever the size of chunks and of the pass, since all in the pass
advance alike: they wait for half of the time with chunks as large as the pass, for a quarter under a target, and the
long ones longer. In chunks that are small beside the pass there is room for others anyway, and it changes little.
""",
    plays={
        "": compare(
            f"{WORKLOADS}/lengths.toml --requests 400",
            WHOLE,
            f"{WHOLE},{ALIKE}",
            CHUNKS,
            f"{CHUNKS},{ALIKE}",
            TWO,
            ONE,
            BOUNDED,
            f"{BOUNDED},{ALIKE}",
        )
    },
    shown=(
        "short: TTFT mean / p50 / p99, ms",
        "long: TTFT mean / p50 / p99, ms",
        "ITL mean / p50 / p99, ms",
        "longest between tokens, ms",
    ),
    holds=lambda rows: (
        tenant(rows[f"{WHOLE},{ALIKE}"], "short").ttft.mean_ms < 0.55 * tenant(rows[WHOLE], "short").ttft.mean_ms
        and tenant(rows[f"{BOUNDED},{ALIKE}"], "short").ttft.mean_ms < 0.3 * tenant(rows[BOUNDED], "short").ttft.mean_ms
        and all(
            tenant(rows[f"{policy},{ALIKE}"], "long").ttft.mean_ms > 1.2 * tenant(rows[policy], "long").ttft.mean_ms
            for policy in (WHOLE, BOUNDED)
        )
        and abs(rows[f"{CHUNKS},{ALIKE}"].ttft.mean_ms / rows[CHUNKS].ttft.mean_ms - 1) < 0.05
        and tenant(rows[BOUNDED], "short").ttft.mean_ms > 2 * tenant(rows[CHUNKS], "short").ttft.mean_ms
        and tenant(rows[CHUNKS], "short").ttft.mean_ms < 0.6 * tenant(rows[WHOLE], "short").ttft.mean_ms
        and tenant(rows[CHUNKS], "long").ttft.mean_ms > tenant(rows[WHOLE], "long").ttft.mean_ms
        and tenant(rows[ONE], "short").ttft.mean_ms > 2 * tenant(rows[CHUNKS], "short").ttft.mean_ms
        and rows[ONE].longest_gap_ms < rows[TWO].longest_gap_ms < rows[CHUNKS].longest_gap_ms
    ),
)
ALONE, IN_ORDER = f"aging_seconds=60,{WHOLE}", "prefill_sharing=IN_ORDER"
BY_LENGTH = f"ordering=SHORTEST_PREFILL_FIRST,{ALONE}"
BY_LATENESS = f"ordering=FEWEST_LATE,target_time_to_first_token_us=4000000,{ALONE}"
GIVING_WAY = Claim(
    title="A long prompt that gives way",
    words="""
In chunks as large as the pass, an order by length alone still leaves short prompts behind a long one that has begun.
IN_ORDER lets them pass, and their slowest first tokens come in less than half of the time; the long ones end little
later, since the work is the same. Under FEWEST_LATE a long prompt gives way for half of the target: the slowest of
the long ones are no later for it, and first tokens come a fifth sooner on average.
""",
    plays={
        "": compare(
            f"{WORKLOADS}/lengths.toml --requests 400",
            f"ordering=FIFO,{ALONE}",
            BY_LENGTH,
            f"{BY_LENGTH},{IN_ORDER}",
            BY_LATENESS,
            f"{BY_LATENESS},{IN_ORDER}",
        )
    },
    shown=(
        "TTFT mean / p50 / p99, ms",
        "short: TTFT mean / p50 / p99, ms",
        "long: TTFT mean / p50 / p99, ms",
        "bound on waiting",
    ),
    holds=lambda rows: (
        tenant(rows[f"{BY_LENGTH},{IN_ORDER}"], "short").ttft.p99_ms
        < 0.5 * tenant(rows[BY_LENGTH], "short").ttft.p99_ms
        and tenant(rows[f"{BY_LENGTH},{IN_ORDER}"], "long").ttft.mean_ms
        < 1.1 * tenant(rows[BY_LENGTH], "long").ttft.mean_ms
        and tenant(rows[f"{BY_LATENESS},{IN_ORDER}"], "long").ttft.p99_ms
        <= tenant(rows[BY_LATENESS], "long").ttft.p99_ms
        and rows[f"{BY_LATENESS},{IN_ORDER}"].ttft.mean_ms < 0.8 * rows[BY_LATENESS].ttft.mean_ms
    ),
)
TARGETS = tuple(f"target_inter_token_latency_us={milliseconds}000" for milliseconds in (200, 100, 50, 20))
FACTORS = tuple(f"max_inter_token_slowdown={factor}" for factor in (8, 4, 2))
BOUNDS = Claim(
    title="Bounds on passes",
    words="""
A target for inter-token latency is kept to the millisecond where the latency model is right, as it is here, and it is
paid for with first tokens. At 100 ms, which is what goodput asks for, the most requests are good; tighter bounds let
prompts wait, and from some point on they keep prefills from doing what comes. A factor does the same for any machine;
its passes grow with the number that decode. At 2 it is too small for this load.
""",
    plays={"": compare(MIX, MIXED, *TARGETS, *FACTORS)},
    shown=SHOWN,
    holds=lambda rows: (
        all(
            rows[target].longest_gap_ms <= milliseconds + 1
            for target, milliseconds in zip(TARGETS, (200, 100, 50, 20), strict=True)
        )
        and rows[TARGETS[1]].goodput_per_s > 1.3 * max(rows[p].goodput_per_s for p in (MIXED, *TARGETS[2:], *FACTORS))
        and rows[MIXED].ttft.mean_ms < rows[TARGETS[1]].ttft.mean_ms < rows[TARGETS[2]].ttft.mean_ms
        and rows[FACTORS[2]].requests_per_s < 0.8 * rows[MIXED].requests_per_s
    ),
)
CLAIMS = (COMPOSITION, SIDE_BY_SIDE, GIVING_WAY, BOUNDS)
NAME, TITLE = "passes", "What shares a pass"


def chart(played: dict[str, Played]) -> Chart:
    latency = latency_distributions({row: played[BOUNDS.title].records[row] for row in (MIXED, *TARGETS[1:])})
    return replace(latency, title=TITLE, panels=latency.panels[:2])


if __name__ == "__main__":
    write_claims(NAME, title=TITLE, words=WORDS, claims=CLAIMS, chart=chart)
