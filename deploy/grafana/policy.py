"""The dashboard of what schedulers decide."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard

from panels import HERE, board, panel, percentiles, rate, reasons


def policy() -> Dashboard:
    """What do the schedulers decide, and why?"""
    by_method = f'{HERE}, method=~"Plan|PlanStream"'
    shadow = "metronome_scheduler_shadow"
    admitted = rate("metronome_scheduler_requests_admitted_total", by="reason", where=HERE)
    return board(
        "Metronome / Scheduler policy",
        "metronome-policy",
        "What schedulers decide and why, how long they take, and how a shadow would decide.",
        {
            "Planning": [
                panel(
                    "Plans a second",
                    "By profile; `inline` policies came with the request.",
                    "short",
                    {"{{profile}}": rate("metronome_scheduler_plans_total", by="profile", where=HERE)},
                    stacked=True,
                ),
                panel(
                    "Time of a plan",
                    "A parsed state to its answer.",
                    "s",
                    percentiles("metronome_scheduler_call_time_seconds", by_method),
                ),
                panel(
                    "Requests of a state",
                    "Planning takes longer the more there are.",
                    "short",
                    percentiles("metronome_scheduler_state_requests", HERE),
                ),
            ],
            "Decisions": [
                panel(
                    "Admitted, a second",
                    "By reason.",
                    "short",
                    {"{{reason}}": f"{admitted} > 0"},
                    stacked=True,
                ),
                panel(
                    "What the first in the queue lacks",
                    "Share of plans that leave somebody waiting, by why.",
                    "percentunit",
                    {
                        "{{reason}}": f"{rate('metronome_scheduler_shortfalls_total', by='reason', where=HERE)} / "
                        f"ignoring (reason) group_left {rate('metronome_scheduler_plans_total', where=HERE)} > 0"
                    },
                    stacked=True,
                ),
                panel(
                    "Evicted and resumed, a second",
                    "Both high: requests go in and out instead of on.",
                    "short",
                    {
                        **reasons(
                            "metronome_scheduler_requests_evicted_total",
                            "mode, reason",
                            everything="evicted",
                            where=HERE,
                        ),
                        "resumed": rate("metronome_scheduler_requests_resumed_total", where=HERE),
                    },
                ),
                panel(
                    "Rejected, a second",
                    "By reason.",
                    "short",
                    reasons("metronome_scheduler_requests_rejected_total", "reason", where=HERE),
                ),
                panel(
                    "Tokens planned a second",
                    "By phase.",
                    "short",
                    {"{{phase}}": rate("metronome_scheduler_scheduled_tokens_total", by="phase", where=HERE)},
                    stacked=True,
                ),
                panel(
                    "Calls refused, a second",
                    "`crashed` is a fault of the scheduler; all else one of the caller.",
                    "short",
                    reasons("metronome_scheduler_calls_refused_total", "method, reason", where=HERE),
                ),
            ],
            "Shadow": [
                panel(
                    "Plans that the shadow makes otherwise",
                    "Share, and by in what.",
                    "percentunit",
                    {
                        "any": f"{rate(f'{shadow}_different_plans_total', where=HERE)} / "
                        f"{rate(f'{shadow}_plans_total', where=HERE)}",
                        "{{kind}}": f"{rate(f'{shadow}_differences_total', by='kind', where=HERE)} / "
                        f"ignoring (kind) group_left {rate(f'{shadow}_plans_total', where=HERE)}",
                    },
                ),
                panel(
                    "Calls that observers missed, a second",
                    "Recorder and shadow have a thread each, and go without what comes faster than they are.",
                    "short",
                    {
                        "{{observer}} dropped": rate(
                            "metronome_scheduler_observer_calls_dropped_total", by="observer", where=HERE
                        ),
                        "{{observer}} failed": rate(
                            "metronome_scheduler_observer_calls_failed_total", by="observer", where=HERE
                        ),
                    },
                ),
                panel(
                    "Processors",
                    "Cores in use; a scheduler uses one for planning.",
                    "short",
                    {"{{instance}}": f'rate(process_cpu_seconds_total{{job="scheduler", {HERE}}}[$__rate_interval])'},
                ),
            ],
        },
    )
