"""The dashboard of everything at once."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard

from panels import board, outcomes, panel, percentiles, rate, reasons


def fleet() -> Dashboard:
    """Is everybody served, and how well?"""
    tokens = "metronome_computed_tokens_total"
    return board(
        "Metronome / Fleet",
        "metronome-fleet",
        "All executors and schedulers: load, latency, and what goes wrong. docs/operations.md says what to do.",
        {
            "Load": [
                panel(
                    "Requests",
                    "Waiting for long: more executors, or a policy that turns away earlier.",
                    "short",
                    {
                        "running": "sum (metronome_num_requests_running)",
                        "waiting": "sum (metronome_num_requests_waiting)",
                        "swapped": "sum (metronome_num_requests_swapped)",
                    },
                    stacked=True,
                ),
                panel(
                    "Tokens a second",
                    "Recomputed tokens are work that evictions made necessary a second time.",
                    "short",
                    {"{{phase}}": rate(tokens, by="phase")},
                    stacked=True,
                ),
                panel(
                    "Requests that end, a second",
                    "Answers are `stop` and `length`.",
                    "reqps",
                    outcomes(),
                    stacked=True,
                ),
            ],
            "Latency": [
                panel(
                    "Time to first token",
                    "Queue time and prefill together.",
                    "s",
                    percentiles("metronome_time_to_first_token_seconds"),
                ),
                panel(
                    "Inter-token latency",
                    "A gap between two tokens of an answer. A high p99 beside a low p50: long prefill chunks.",
                    "s",
                    percentiles("metronome_inter_token_latency_seconds"),
                ),
                panel(
                    "Queue time",
                    "Arrival to first run.",
                    "s",
                    percentiles("metronome_request_queue_time_seconds"),
                ),
            ],
            "Executors": [
                panel(
                    "KV cache in use",
                    "Near 100 % with requests waiting for blocks: too small for the load.",
                    "percentunit",
                    {"{{instance}}": "metronome_kv_cache_usage_perc"},
                ),
                panel(
                    "Evictions a second",
                    "Each is work lost, or copied.",
                    "short",
                    reasons("metronome_evictions_total", "mode, reason"),
                ),
                panel(
                    "Plans",
                    "Safe: no scheduler's plan could be used. Direct: the device waited for a whole round trip.",
                    "short",
                    {"{{source}}": rate("metronome_plans_total", by="source")},
                    stacked=True,
                ),
            ],
            "Tenants": [
                panel(
                    "Tokens a second, the ten largest",
                    "Generated, of requests that ended.",
                    "short",
                    {"{{tenant}}": f"topk(10, {rate('metronome_tenant_generation_tokens_total', by='tenant')})"},
                ),
                panel(
                    "Requests that wait, the ten largest",
                    "One tenant alone: a queue limit for tenants, or FAIR, keeps it from the others.",
                    "short",
                    {"{{tenant}}": "topk(10, sum by (tenant) (metronome_tenant_num_requests_waiting))"},
                ),
                panel(
                    "Mean queue time, the ten longest",
                    "Of requests that ended.",
                    "s",
                    {
                        "{{tenant}}": f"topk(10, {rate('metronome_tenant_queue_time_seconds_total', by='tenant')} / "
                        f"{rate('metronome_tenant_requests_finished_total', by='tenant')})"
                    },
                ),
            ],
            "Processes": [
                panel("Up", "0: it cannot be scraped.", "short", {"{{job}} {{instance}}": "up"}),
                panel("Memory", "Resident.", "bytes", {"{{job}} {{instance}}": "process_resident_memory_bytes"}),
                panel(
                    "Processors",
                    "Cores in use.",
                    "short",
                    {"{{job}} {{instance}}": "rate(process_cpu_seconds_total[$__rate_interval])"},
                ),
            ],
        },
    )
