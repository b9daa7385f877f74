"""The dashboard of one executor."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard

from panels import HERE, board, mean, outcomes, panel, percentiles, rate, reasons


def executor() -> Dashboard:
    """Where does the time of an executor's passes go, and its memory?"""
    part = "metronome_iteration_part_time_seconds"
    predicted, took = "metronome_predicted_time_seconds_total", "metronome_predicted_passes_time_seconds_total"
    tokens = "metronome_computed_tokens_total"
    return board(
        "Metronome / Executor",
        "metronome-executor",
        "One executor, or several added up: passes, KV cache, plans.",
        {
            "Passes": [
                panel(
                    "Iteration time",
                    "What those who decode wait for each token.",
                    "s",
                    percentiles("metronome_iteration_time_seconds", HERE),
                ),
                panel(
                    "Parts of an iteration, mean",
                    "Where the time of a pass goes. Waiting for the plan is time in which the device stands still.",
                    "s",
                    {"{{part}}": mean(part, by="part", where=f'{HERE}, part!="plan"')},
                    stacked=True,
                ),
                panel(
                    "Tokens of a pass, mean",
                    "How full the batch is: few tokens a pass waste the device.",
                    "short",
                    {"tokens": mean("metronome_iteration_tokens", where=HERE)},
                ),
                panel(
                    "Tokens a second",
                    "By phase; recomputed ones were computed before.",
                    "short",
                    {"{{phase}}": rate(tokens, by="phase", where=HERE)},
                    stacked=True,
                ),
                panel(
                    "Predicted time of a pass to what it took",
                    "Far from 1: the latency model does not fit, and with it AUTO eviction and inter-token targets.",
                    "percentunit",
                    {"predicted / took": f"{rate(predicted, where=HERE)} / {rate(took, where=HERE)}"},
                ),
                panel(
                    "Drafts that are right",
                    "Of those verified; below a third speculation hardly pays.",
                    "percentunit",
                    {
                        "accepted": f"{rate('metronome_spec_decode_num_accepted_tokens_total', where=HERE)} / "
                        f"{rate('metronome_spec_decode_num_draft_tokens_total', where=HERE)}"
                    },
                ),
            ],
            "Requests": [
                panel(
                    "Requests",
                    "The running set, the queue and the swap space.",
                    "short",
                    {
                        name: f"sum (metronome_num_requests_{name}{{{HERE}}})"
                        for name in ("running", "waiting", "swapped")
                    },
                    stacked=True,
                ),
                panel(
                    "Why requests wait",
                    "The reason of the first, for all behind it.",
                    "short",
                    {"{{reason}}": f"sum by (reason) (metronome_num_requests_waiting_by_reason{{{HERE}}}) > 0"},
                    stacked=True,
                ),
                panel(
                    "Requests that end, a second",
                    "Answers are `stop` and `length`.",
                    "reqps",
                    outcomes(HERE),
                    stacked=True,
                ),
                panel(
                    "Time to first token",
                    "From arrival.",
                    "s",
                    percentiles("metronome_time_to_first_token_seconds", HERE),
                ),
                panel(
                    "Inter-token latency",
                    "A token to the next.",
                    "s",
                    percentiles("metronome_inter_token_latency_seconds", HERE),
                ),
                panel(
                    "Time of a request",
                    "Arrival to last token.",
                    "s",
                    percentiles("metronome_e2e_request_latency_seconds", HERE),
                ),
            ],
            "Memory": [
                panel(
                    "Blocks in use",
                    "KV cache and swap space.",
                    "percentunit",
                    {
                        "KV {{instance}}": f"metronome_kv_cache_usage_perc{{{HERE}}}",
                        "swap {{instance}}": f"metronome_swap_usage_perc{{{HERE}}}",
                    },
                ),
                panel(
                    "Evictions a second",
                    "By what became of the KV, and why.",
                    "short",
                    reasons("metronome_evictions_total", "mode, reason", where=HERE),
                ),
                panel(
                    "Tokens found in the prefix cache",
                    "Of those looked up.",
                    "percentunit",
                    {
                        "found": f"{rate('metronome_prefix_cache_hits_total', where=HERE)} / "
                        f"{rate('metronome_prefix_cache_queries_total', where=HERE)}"
                    },
                ),
            ],
            "Plans": [
                panel(
                    "Plans",
                    "Where those of the passes came from.",
                    "short",
                    {"{{source}}": rate("metronome_plans_total", by="source", where=HERE)},
                    stacked=True,
                ),
                panel(
                    "Plans refused, and not had, a second",
                    "Refused: they did not fit the books. Not had: no scheduler gave one.",
                    "short",
                    {
                        **reasons("metronome_plans_refused_total", "reason", everything="refused", where=HERE),
                        **reasons("metronome_plan_failures_total", "cause", everything="not had", where=HERE),
                    },
                ),
                panel(
                    "Round trip to the scheduler",
                    "Beside the pass before, where plans are asked for ahead.",
                    "s",
                    percentiles(part, f'{HERE}, part="plan"'),
                ),
            ],
        },
    )
