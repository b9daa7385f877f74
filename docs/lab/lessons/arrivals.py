"""What happens to those that arrive: what docs/policies.md says of prefixes, of limits to a queue, and of placement."""

from __future__ import annotations

from dataclasses import replace

from claims import AZURE, WORKLOADS, Claim, Played, compare, tenant, write_claims
from metronome_lab.report.charts import Chart, queue_length
from scheduler_service.core.placement import Placement

WORDS = """
Bursts that begin alike, queues with a limit, and fleets, on Llama 3.1 8B and A100s.
"""
HOLD, EACH = "hold_for_shared_prefix=true", "hold_for_shared_prefix=false"
DOCUMENT = f"{WORKLOADS}/one_document.toml --requests 400"
SHARED = Claim(
    title="One computes what many begin with",
    words="""
Twenty questions about one document come at once, now and then. Where the cache is small the document is gone when the
next burst comes, and the first of the burst compute it side by side; held, they wait for one of them, and find it.
The mean to the first token halves, and conversations beside them wait less too. Where the cache is large the document
is computed in the first burst alone, and that is where it helps. The cost shows in the median: who would have found
the document in the cache anyhow now waits a little longer, since more of the others decode beside it.
""",
    plays={
        "small cache": compare(f"{DOCUMENT} --limit num_blocks=1500", EACH, HOLD),
        "large cache": compare(DOCUMENT, EACH, HOLD),
    },
    shown=(
        "cached tokens",
        "questions: TTFT mean / p50 / p99, ms",
        "chat: TTFT mean / p50 / p99, ms",
        "ITL mean / p50 / p99, ms",
    ),
    holds=lambda rows: (
        all(
            tenant(rows[f"{size}: {HOLD}"], "questions").ttft.mean_ms
            < 0.7 * tenant(rows[f"{size}: {EACH}"], "questions").ttft.mean_ms
            and tenant(rows[f"{size}: {HOLD}"], "questions").ttft.p50_ms
            > tenant(rows[f"{size}: {EACH}"], "questions").ttft.p50_ms
            for size in ("small cache", "large cache")
        )
        and rows[f"small cache: {HOLD}"].num_cached_tokens > 1.05 * rows[f"small cache: {EACH}"].num_cached_tokens
        and tenant(rows[f"small cache: {HOLD}"], "chat").ttft.mean_ms
        < 0.9 * tenant(rows[f"small cache: {EACH}"], "chat").ttft.mean_ms
    ),
)
NO_LIMIT = "ordering=FIFO"
LIMITS = tuple(f"max_num_waiting={limit}" for limit in (64, 16, 0))
PER_TENANT = "max_num_waiting_per_tenant=16"
QUEUE = Claim(
    title="A queue with a limit",
    words="""
Half as much again comes as can be done. Without a limit everybody is answered, and late. The shorter the queue, the
shorter the longest wait, and the more are in time, although fewer are answered; with a limit of 0 only those stay
that start at once. A limit for each tenant turns away those of the burst alone: all conversations are answered.
""",
    plays={"": compare(f"{AZURE} --requests 500 --rate 0.4", NO_LIMIT, *LIMITS, PER_TENANT)},
    shown=(
        "code: finished",
        "conv: finished",
        "refused, rejected, expired",
        "longest wait, s",
        "TTFT mean / p50 / p99, ms",
        "goodput, requests/s",
    ),
    holds=lambda rows: (
        rows[NO_LIMIT].num_rejected == 0
        and rows[NO_LIMIT].longest_wait_s
        > 1.5 * rows[LIMITS[0]].longest_wait_s
        > 3 * rows[LIMITS[1]].longest_wait_s
        > 10 * rows[LIMITS[2]].longest_wait_s
        and rows[NO_LIMIT].goodput_per_s
        < rows[LIMITS[0]].goodput_per_s
        < rows[LIMITS[1]].goodput_per_s
        < rows[LIMITS[2]].goodput_per_s
        and tenant(rows[PER_TENANT], "conv").num_finished == tenant(rows[PER_TENANT], "conv").num_requests
        and tenant(rows[PER_TENANT], "code").num_finished < tenant(rows[PER_TENANT], "code").num_requests
    ),
)
RULES = (Placement.ROUND_ROBIN, Placement.POWER_OF_TWO_CHOICES, Placement.LEAST_LOADED, Placement.CACHED_PREFIX)


def on_four(scenario: str) -> dict[str, str]:
    """The scenario on four executors, by each rule of placement."""
    flag = {rule: rule.name.lower().replace("_", "-") for rule in RULES}
    return {rule.name: f"{scenario} --executors 4 --placement {flag[rule]} --profile fifo" for rule in RULES}


PLACEMENT = Claim(
    title="Which executor",
    words="""
Four executors at about what they can do, with conversations and bursts of code completion. By load first tokens come
a tenth sooner than in turn, and the latest a fifth; two that are drawn by lot are nearly as good as a look at all.
Where no prompts begin alike CACHED_PREFIX is LEAST_LOADED.
""",
    plays=on_four(f"{AZURE} --requests 500"),
    shown=("TTFT mean / p50 / p99, ms", "E2E mean / p50 / p99, ms", "longest wait, s", "requests/s"),
    holds=lambda rows: (
        rows["CACHED_PREFIX"] == rows["LEAST_LOADED"]
        and rows["LEAST_LOADED"].ttft.mean_ms
        <= rows["POWER_OF_TWO_CHOICES"].ttft.mean_ms
        < rows["ROUND_ROBIN"].ttft.mean_ms
    ),
)
CACHED = Claim(
    title="Where the beginning is cached",
    words="""
Eight services begin each with instructions of its own, 2,048 tokens, of which the small cache of an executor keeps
few beside what runs. CACHED_PREFIX brings those that begin alike together and finds half as many tokens again; first
tokens come twenty times sooner, since without it most prompt tokens that the fleet computes are instructions, and it
falls behind. The other rules know nothing of this and differ little.
""",
    plays=on_four(f"{WORKLOADS}/instructions.toml --requests 400 --limit num_blocks=800"),
    shown=("cached tokens", "TTFT mean / p50 / p99, ms", "E2E mean / p50 / p99, ms", "requests/s"),
    holds=lambda rows: (
        rows["CACHED_PREFIX"].num_cached_tokens > 1.4 * max(rows[rule.name].num_cached_tokens for rule in RULES[:3])
        and rows["CACHED_PREFIX"].ttft.mean_ms < 0.1 * min(rows[rule.name].ttft.mean_ms for rule in RULES[:3])
    ),
)
CLAIMS = (SHARED, QUEUE, PLACEMENT, CACHED)
NAME, TITLE = "arrivals", "Those that arrive: begun alike, turned away, placed"


def chart(played: dict[str, Played]) -> Chart:
    return replace(queue_length(played[QUEUE.title].records), title=TITLE)


if __name__ == "__main__":
    write_claims(NAME, title=TITLE, words=WORDS, claims=CLAIMS, chart=chart)
