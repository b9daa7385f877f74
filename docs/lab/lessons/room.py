"""Who has room in the cache: what docs/policies.md says of admission, preemption and victims."""

from __future__ import annotations

from dataclasses import replace

from claims import AZURE, WORKLOADS, Claim, Played, compare, tenant, write_claims
from metronome_lab.report.charts import Chart, kv_use, queue_length

NUM_BLOCKS = 1000
WORDS = """
Admission, preemption and victims where the cache is short, on Llama 3.1 8B and one A100 with fewer blocks than it has.
What an eviction costs by the speed of the bus, and when to swap or to compute again: [when the cache is
short](memory.md).
"""
OPEN = f"{AZURE} --requests 400 --rate 0.3 --limit num_blocks={NUM_BLOCKS} --max-output-tokens 1024"
RESERVE, WATERMARK, PREDICTIVE = "admission=RESERVE", "admission=WATERMARK", "admission=PREDICTIVE"
PREDICTIVE_BLIND = "`admission=PREDICTIVE`, lengths unknown"
ADMISSION = Claim(
    title="Reserve, watermark, predict",
    words="""
Answers may have 1,024 tokens, and most have far fewer; far more comes than the cache holds. RESERVE gets the least
done and never makes an answer pause. WATERMARK gets the most done, and evicts: some answers pause for seconds.
PREDICTIVE that is told the right lengths lies between: it holds from the start what an answer needs at its end, so
its cache is not as full as with WATERMARK, and nobody is evicted. Estimates that are off by a factor of two, in both
directions, cost next to nothing, since the errors of those that run cancel. Without estimates PREDICTIVE holds the
bound, as RESERVE does, and is no better.
""",
    plays={
        "": compare(OPEN, RESERVE, WATERMARK, PREDICTIVE),
        "`admission=PREDICTIVE`, lengths off by two": compare(f"{OPEN} --estimates 0.7", PREDICTIVE),
        PREDICTIVE_BLIND: compare(f"{OPEN} --estimates none", PREDICTIVE),
    },
    shown=("requests/s", "E2E mean / p50 / p99, ms", "longest between tokens, ms", "evictions"),
    holds=lambda rows: (
        rows[RESERVE].num_preemptions == rows[PREDICTIVE].num_preemptions == 0 < rows[WATERMARK].num_preemptions
        and 1.1 * rows[RESERVE].requests_per_s < rows[PREDICTIVE].requests_per_s < rows[WATERMARK].requests_per_s
        and rows[WATERMARK].longest_gap_ms > 4 * rows[RESERVE].longest_gap_ms
        and rows[PREDICTIVE_BLIND].requests_per_s < 1.02 * rows[RESERVE].requests_per_s
    ),
)
SHARES = ("watermark=0", "watermark=0.01", "watermark=0.1", "watermark=0.3")
SHARE = Claim(
    title="The share that stays free",
    words="""
A share of the blocks that admission leaves free is what running answers grow into. One in a hundred halves the
evictions of none and costs nothing; a tenth saves all of them here for a few percent of the throughput; with three
tenths the cache stands empty for nothing, as under RESERVE.
""",
    plays={"": compare(OPEN, *SHARES)},
    shown=("requests/s", "E2E mean / p50 / p99, ms", "longest between tokens, ms", "evictions"),
    holds=lambda rows: (
        rows[SHARES[1]].num_preemptions < 0.75 * rows[SHARES[0]].num_preemptions
        and rows[SHARES[1]].requests_per_s > 0.99 * rows[SHARES[0]].requests_per_s
        and rows[SHARES[2]].num_preemptions == 0
        and rows[SHARES[3]].requests_per_s < 0.9 * rows[SHARES[1]].requests_per_s
    ),
)
STRICT_PRIORITY = "ordering=PRIORITY,aging_seconds=1e6"
PREEMPTIONS = (
    f"{STRICT_PRIORITY},preemption=NEVER,admission=RESERVE",
    f"{STRICT_PRIORITY},preemption=WHEN_FULL",
    f"{STRICT_PRIORITY},preemption=FOR_PRIORITY",
)
SHORT_OF = {"places": "max_num_seqs=24", "blocks": "num_blocks=1500"}
PREEMPTION = Claim(
    title="Who leaves for whom",
    words="""
Priorities without aging, where places are short and where blocks are. Without FOR_PRIORITY an urgent request waits
until somebody ends; with it the urgent enter with the next pass or nearly so, and the background pays: it is evicted,
mostly, and its answers take longer. Throughput hardly suffers. Where blocks are short NEVER, which needs RESERVE,
evicts nobody, and gets less done.
""",
    plays={
        f"{what} short": compare(f"{WORKLOADS}/priorities.toml --requests 400 --limit {limit}", *PREEMPTIONS)
        for what, limit in SHORT_OF.items()
    },
    shown=(
        "urgent: wait mean / p50 / p99, ms",
        "chat: E2E mean / p50 / p99, ms",
        "background: E2E mean / p50 / p99, ms",
        "evictions",
        "requests/s",
    ),
    holds=lambda rows: all(
        tenant(rows[f"{what} short: {PREEMPTIONS[2]}"], "urgent").wait.mean_ms
        < 0.5 * tenant(rows[f"{what} short: {PREEMPTIONS[1]}"], "urgent").wait.mean_ms
        and tenant(rows[f"{what} short: {PREEMPTIONS[2]}"], "background").e2e.mean_ms
        > 1.05 * tenant(rows[f"{what} short: {PREEMPTIONS[1]}"], "background").e2e.mean_ms
        and rows[f"{what} short: {PREEMPTIONS[2]}"].requests_per_s
        > 0.97 * rows[f"{what} short: {PREEMPTIONS[1]}"].requests_per_s
        and rows[f"{what} short: {PREEMPTIONS[0]}"].num_preemptions == 0
        for what in SHORT_OF
    ),
)
LAST_IN_ORDER, CHEAPEST = (
    f"eviction=RECOMPUTE,watermark=0,victim={victim}" for victim in ("LAST_IN_ORDER", "CHEAPEST")
)
MIX, LENGTHS, COMMON = "conversations and code", "short and long", "long prompts in common"
VICTIM = Claim(
    title="Victims",
    words="""
CHEAPEST weighs lost tokens against the blocks that are freed, which is nearly one figure for all: sixteen tokens a
block. What decides is the last block of each, of which the shorter requests have the emptier share, so it evicts short
ones, and often more of them. The tokens that are computed again are about as many as with LAST_IN_ORDER, a few percent
fewer in two of these workloads and a fifth more in the third, and so is the longest pause. `max_preemptions` keeps the
short ones from being evicted again and again, which saves a little.
""",
    plays={
        MIX: compare(OPEN, LAST_IN_ORDER, CHEAPEST),
        LENGTHS: compare(
            f"{WORKLOADS}/lengths.toml --requests 400 --limit num_blocks=1000",
            LAST_IN_ORDER,
            CHEAPEST,
            f"{CHEAPEST},max_preemptions=1",
        ),
        COMMON: compare(
            f"{WORKLOADS}/instructions.toml --requests 400 --limit num_blocks=1200", LAST_IN_ORDER, CHEAPEST
        ),
    },
    shown=("evictions", "recomputed tokens", "requests/s", "longest between tokens, ms"),
    holds=lambda rows: (
        all(
            0.85
            < rows[f"{name}: {CHEAPEST}"].num_recomputed_tokens / rows[f"{name}: {LAST_IN_ORDER}"].num_recomputed_tokens
            < 1
            and rows[f"{name}: {CHEAPEST}"].longest_gap_ms < rows[f"{name}: {LAST_IN_ORDER}"].longest_gap_ms
            for name in (MIX, LENGTHS)
        )
        and rows[f"{COMMON}: {CHEAPEST}"].num_recomputed_tokens
        > 1.1 * rows[f"{COMMON}: {LAST_IN_ORDER}"].num_recomputed_tokens
        and rows[f"{COMMON}: {CHEAPEST}"].longest_gap_ms > rows[f"{COMMON}: {LAST_IN_ORDER}"].longest_gap_ms
        and rows[f"{LENGTHS}: {CHEAPEST},max_preemptions=1"].num_preemptions
        < rows[f"{LENGTHS}: {CHEAPEST}"].num_preemptions
    ),
)
CLAIMS = (ADMISSION, SHARE, PREEMPTION, VICTIM)
NAME, TITLE = "room", "Who has room in the cache"


def chart(played: dict[str, Played]) -> Chart:
    records = played[ADMISSION.title].records
    runs = {policy: records[policy] for policy in (RESERVE, WATERMARK, PREDICTIVE)}
    use, queue = kv_use(runs, NUM_BLOCKS), queue_length(runs)
    return replace(use, title=TITLE, panels=(replace(use.panels[0], title=use.title), queue.panels[0]))


if __name__ == "__main__":
    write_claims(NAME, title=TITLE, words=WORDS, claims=CLAIMS, chart=chart)
