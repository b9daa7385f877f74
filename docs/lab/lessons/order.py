"""Who comes first: what docs/policies.md says of orderings, and of those behind one that does not fit."""

from __future__ import annotations

from claims import AZURE, WORKLOADS, Claim, Played, compare, tenant, write_claims
from lesson import waits_by_arrival
from metronome_lab.report.charts import Chart

WORDS = """
Orderings, and what happens behind a request that does not fit, on Llama 3.1 8B and one A100. Each table has lines of
what its command prints; classes of work are tenants of the described workloads, so that each has figures of its own.
"""
STRICT_PRIORITY = "ordering=PRIORITY,aging_seconds=1e6"
PRIORITIES = Claim(
    title="Priorities and aging",
    words="""
More comes than 24 places can serve; urgent requests and conversations alone are less than that. With an aging that is
longer than the queue the urgent wait for a fraction of a second, as the 24 places turn over, and the background waits
for the end of the load: strict priority starves. The shorter the aging, the more of the waiting the urgent share:
with ten seconds 40 percent of FIFO's, with one second nearly all.
""",
    plays={
        "": compare(
            f"{WORKLOADS}/priorities.toml --requests 400 --rate 1.5 --limit max_num_seqs=24",
            "ordering=FIFO",
            "ordering=PRIORITY,aging_seconds=1",
            "ordering=PRIORITY,aging_seconds=10",
            STRICT_PRIORITY,
        )
    },
    shown=(
        "urgent: wait mean / p50 / p99, ms",
        "chat: wait mean / p50 / p99, ms",
        "background: wait mean / p50 / p99, ms",
        "longest wait, s",
        "requests/s",
        "bound on waiting",
    ),
    holds=lambda rows: (
        tenant(rows[STRICT_PRIORITY], "urgent").wait.mean_ms
        < 0.1 * tenant(rows["ordering=FIFO"], "urgent").wait.mean_ms
        and tenant(rows["ordering=PRIORITY,aging_seconds=1"], "urgent").wait.mean_ms
        > 5 * tenant(rows[STRICT_PRIORITY], "urgent").wait.mean_ms
        and rows[STRICT_PRIORITY].longest_wait_s > 1.3 * rows["ordering=FIFO"].longest_wait_s
    ),
)
FIFO, JOB, PREFILL, FEWEST = (
    f"ordering={ordering},aging_seconds=60,chunk_size_tokens=2048"
    for ordering in ("FIFO", "SHORTEST_JOB_FIRST", "SHORTEST_PREFILL_FIRST", "FEWEST_LATE")
)
PREFILL_512, FEWEST_512 = (policy.replace("2048", "512") for policy in (PREFILL, FEWEST))
BLIND = "--max-output-tokens 2048 --estimates none --itl 1000000"
SHORT_FIRST = Claim(
    title="Short before long",
    words="""
Nobody knows how long answers get, and goodput counts first tokens within 2 s alone (`--itl`). Under a light load
nearly all are in time in any order. In overload FIFO makes two of three late, one after the other. By size most are
in time, and the longest wait is nearly twice that under FIFO; SHORTEST_JOB_FIRST, which has only the bound on the
answer to add, orders nearly alike. FEWEST_LATE has the most in time where prompts are computed one after the other, in
chunks as large as the pass. In chunks of a quarter of the pass four prompts go on side by side and long ones end later:
it counts that, and still has more in time than an order by size, but fewer than with large chunks.
""",
    plays={
        "light": compare(f"{AZURE} --requests 500 --rate 0.1 {BLIND}", FIFO, PREFILL, FEWEST),
        "overload": compare(
            f"{AZURE} --requests 500 --rate 0.35 {BLIND}", FIFO, JOB, PREFILL, FEWEST, PREFILL_512, FEWEST_512
        ),
    },
    shown=("goodput, requests/s", "TTFT mean / p50 / p99, ms", "longest wait, s", "bound on waiting"),
    holds=lambda rows: (
        min(rows[f"light: {policy}"].share_good for policy in (FIFO, PREFILL, FEWEST)) > 0.98
        and rows[f"overload: {FIFO}"].share_good < 0.4
        and abs(rows[f"overload: {JOB}"].share_good - rows[f"overload: {PREFILL}"].share_good) < 0.01
        and rows[f"overload: {FEWEST}"].share_good > rows[f"overload: {PREFILL}"].share_good + 0.02
        and rows[f"overload: {FEWEST_512}"].share_good > rows[f"overload: {PREFILL_512}"].share_good + 0.01
        and rows[f"overload: {FEWEST_512}"].share_good < rows[f"overload: {FEWEST}"].share_good - 0.05
        and rows[f"overload: {PREFILL}"].longest_wait_s > 1.7 * rows[f"overload: {FIFO}"].longest_wait_s
    ),
)
EDF = (
    "ordering=FIFO",
    "ordering=EARLIEST_DEADLINE_FIRST",
    "ordering=EARLIEST_DEADLINE_FIRST,reject_missed_deadlines=true",
)
DEADLINES = Claim(
    title="Deadlines",
    words="""
Questions are ended after twelve seconds, documents have no deadline; 24 places, and 1.5 or 6 times the rate that is
described. FIFO finishes a quarter of the questions, since they wait behind documents, and works in vain on many.
EARLIEST_DEADLINE_FIRST finishes nine in ten, and gets more done in all; alone none of the others would be late, as
none is rejected, but those beside them slow them down. Documents wait for as long as questions keep coming. Where
questions alone are far too many it works on those that are due next and late as well: fewer than half are finished,
and no more tokens are answered than under FIFO. `reject_missed_deadlines` turns away who could not make it alone, and
they are few.
""",
    plays={
        "1.5 times": compare(f"{WORKLOADS}/deadlines.toml --requests 400 --rate 1.5 --limit max_num_seqs=24", *EDF),
        "6 times": compare(f"{WORKLOADS}/deadlines.toml --requests 400 --rate 6 --limit max_num_seqs=24", *EDF),
    },
    shown=(
        "question: finished",
        "document: finished",
        "refused, rejected, expired",
        "document: wait mean / p50 / p99, ms",
        "output tokens/s",
    ),
    holds=lambda rows: (
        tenant(rows[f"1.5 times: {EDF[1]}"], "question").num_finished
        > 2 * tenant(rows[f"1.5 times: {EDF[0]}"], "question").num_finished
        and tenant(rows[f"1.5 times: {EDF[1]}"], "document").wait.mean_ms
        > 2 * tenant(rows[f"1.5 times: {EDF[0]}"], "document").wait.mean_ms
        and rows[f"1.5 times: {EDF[2]}"].num_rejected == 0
        and rows[f"1.5 times: {EDF[1]}"].output_tokens_per_s > 1.1 * rows[f"1.5 times: {EDF[0]}"].output_tokens_per_s
        and tenant(rows[f"6 times: {EDF[1]}"], "question").num_finished
        < 0.5 * tenant(rows[f"6 times: {EDF[1]}"], "question").num_requests
        and rows[f"6 times: {EDF[1]}"].output_tokens_per_s < 1.02 * rows[f"6 times: {EDF[0]}"].output_tokens_per_s
        and 0 < rows[f"6 times: {EDF[2]}"].num_rejected < 0.2 * rows[f"6 times: {EDF[1]}"].num_expired
    ),
)
WITHIN_TENANTS = "ordering=FAIR,ordering_within_tenant=SHORTEST_PREFILL_FIRST,aging_seconds=60"
WITHIN = Claim(
    title="An order within tenants",
    words="""
Code completion comes in bursts of long prompts. FIFO makes conversations wait behind them; FAIR lets the burst wait
by itself. An order within tenants then helps inside of the burst: half of the code requests get their first token in
a fraction of the time, and the longest prompts wait longer, up to the aging. Conversations notice little of it, where
the same order without FAIR makes the long ones among them wait for the short ones of the burst. It costs some
evenness: the service of the two tenants differs by a few of the largest requests instead of one.
""",
    plays={
        "": compare(
            f"{AZURE} --requests 500 --rate 0.35",
            "ordering=FIFO",
            "ordering=FAIR",
            WITHIN_TENANTS,
            "ordering=SHORTEST_PREFILL_FIRST,aging_seconds=60",
        )
    },
    shown=(
        "code: TTFT mean / p50 / p99, ms",
        "conv: TTFT mean / p50 / p99, ms",
        "largest service gap, tokens",
        "longest wait, s",
        "bound on waiting",
    ),
    holds=lambda rows: (
        tenant(rows["ordering=FAIR"], "conv").ttft.mean_ms < 0.25 * tenant(rows["ordering=FIFO"], "conv").ttft.mean_ms
        and tenant(rows[WITHIN_TENANTS], "code").ttft.p50_ms < 0.5 * tenant(rows["ordering=FAIR"], "code").ttft.p50_ms
        and tenant(rows[WITHIN_TENANTS], "code").ttft.p99_ms > tenant(rows["ordering=FAIR"], "code").ttft.p99_ms
        and rows["ordering=FAIR"].fairness.largest_gap_tokens < 0.1 * rows["ordering=FIFO"].fairness.largest_gap_tokens
    ),
)
CHARGED = "ordering=FAIR,kv_residency_charge=1"
RESIDENCY = Claim(
    title="Tenants that hold the cache",
    words="""
Blocks are short, and the answers of conversations are long: they hold most of the cache while code completion, whose
answers are short, waits. By tokens alone conversations look modest, and hardly wait. With a charge of the token
budget over the number of blocks, 2,048 / 2,048 here, code completion waits little more than half as long, and
conversations wait longer than it does; with a quarter of that both wait, and code completion still longer. Nothing of
the throughput is lost.
""",
    plays={
        "": compare(
            f"{AZURE} --requests 300 --rate 0.3 --limit num_blocks=2048",
            "ordering=FAIR",
            CHARGED,
            "ordering=FAIR,kv_residency_charge=0.25",
        )
    },
    shown=(
        "code: wait mean / p50 / p99, ms",
        "conv: wait mean / p50 / p99, ms",
        "requests/s",
        "evictions",
    ),
    holds=lambda rows: (
        tenant(rows[CHARGED], "code").wait.mean_ms < 0.7 * tenant(rows["ordering=FAIR"], "code").wait.mean_ms
        and tenant(rows[CHARGED], "conv").wait.mean_ms > 2 * tenant(rows["ordering=FAIR"], "conv").wait.mean_ms
        and rows[CHARGED].requests_per_s > 0.98 * rows["ordering=FAIR"].requests_per_s
    ),
)
HEADS = (
    "head_of_line=STRICT",
    "head_of_line=SKIP,max_times_overtaken=4",
    "head_of_line=SKIP,max_times_overtaken=64",
    "head_of_line=BACKFILL",
)
SMALL_CACHE = f"{WORKLOADS}/lengths.toml --requests 400 --limit num_blocks=1000"
HEAD_OF_LINE = Claim(
    title="Behind one that does not fit",
    words="""
A long request takes half of a small cache, and short ones stand behind it while it waits for blocks. STRICT has all
of them wait. SKIP with little patience helps little: it is used up at once. With much of it short requests hardly
wait, and the long ones pay. BACKFILL lets most of the short ones pass, gets more done than any of them, and nobody is
evicted. Nobody who passes puts the reservation off, but passes in which more run take longer, so the long ones come a
few percent later than under STRICT. Where expected lengths are off by a factor of two it is nearly as good; where
lengths are open next to nobody passes.
""",
    plays={
        "": compare(SMALL_CACHE, *HEADS),
        "`head_of_line=BACKFILL`, lengths off by two": compare(
            f"{SMALL_CACHE} --max-output-tokens 1000 --estimates 0.7", "head_of_line=BACKFILL"
        ),
        "`head_of_line=BACKFILL`, lengths open": compare(
            f"{SMALL_CACHE} --max-output-tokens 2048 --estimates none", "head_of_line=BACKFILL"
        ),
    },
    shown=(
        "short: wait mean / p50 / p99, ms",
        "long: wait mean / p50 / p99, ms",
        "longest wait, s",
        "requests/s",
        "evictions",
    ),
    holds=lambda rows: (
        tenant(rows[HEADS[1]], "short").wait.mean_ms > 0.7 * tenant(rows[HEADS[0]], "short").wait.mean_ms
        and tenant(rows[HEADS[2]], "short").wait.mean_ms < 0.1 * tenant(rows[HEADS[0]], "short").wait.mean_ms
        and rows[HEADS[2]].longest_wait_s > 1.1 * rows[HEADS[0]].longest_wait_s
        and tenant(rows[HEADS[3]], "short").wait.mean_ms < 0.3 * tenant(rows[HEADS[0]], "short").wait.mean_ms
        and rows[HEADS[3]].requests_per_s > max(rows[head].requests_per_s for head in HEADS[:3])
        and rows[HEADS[0]].longest_wait_s < rows[HEADS[3]].longest_wait_s < 1.1 * rows[HEADS[0]].longest_wait_s
        and tenant(rows["`head_of_line=BACKFILL`, lengths open"], "short").wait.mean_ms
        > 0.8 * tenant(rows[HEADS[0]], "short").wait.mean_ms
    ),
)
CLAIMS = (PRIORITIES, SHORT_FIRST, DEADLINES, WITHIN, RESIDENCY, HEAD_OF_LINE)
NAME, TITLE = "order", "Who comes first, and who may pass"


def chart(played: dict[str, Played]) -> Chart:
    return waits_by_arrival(TITLE, played[PRIORITIES.title].records)


if __name__ == "__main__":
    write_claims(NAME, title=TITLE, words=WORDS, claims=CLAIMS, chart=chart)
