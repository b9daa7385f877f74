"""No state crashes the planner: it is refused with the field at fault, or planned within the invariants."""

from __future__ import annotations

from hypothesis import event, given, settings
from hypothesis import strategies as st

from scheduler_service.core.errors import StateError
from scheduler_service.core.explain import explain_executor
from scheduler_service.core.plan import plan_executor
from scheduler_service.core.policy import Policy
from scheduler_service.core.state import COLUMN_NAMES, ExecutorLimits, ExecutorState, LatencyModel, Requests
from scheduler_service.core.validate import validate
from scheduler_service.core.verify import verify
from support.depth import num_examples
from support.states import NOW_US, cluster_of, policies

WIDE_COLUMNS = ("id", "arrival_time_us", "deadline_us", "last_run_iteration")
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
MOST = 2**31 - 1


def figures(wide: st.SearchStrategy[int]) -> st.SearchStrategy[int]:
    """Mostly figures that make sense together, now and then any that the type holds."""
    return st.one_of(st.integers(0, 3), st.integers(1, 2), st.sampled_from([0, 1, MOST]), wide)


@st.composite
def any_executors(draw: st.DrawFn) -> ExecutorState:
    num_requests = draw(st.integers(0, 5))
    columns = {"id": list(range(1, num_requests + 1)), "num_prompt_tokens": [draw(st.integers(1, 40))] * num_requests}
    columns["status"] = [draw(st.integers(1, 4)) for _ in range(num_requests)]
    for name in draw(st.lists(st.sampled_from(COLUMN_NAMES), max_size=6)):
        column = figures(INT64 if name in WIDE_COLUMNS else INT32)
        columns[name] = [draw(column) for _ in range(num_requests)]
    size = st.one_of(st.integers(1, 50), st.sampled_from([1, MOST]))
    float_figure = st.one_of(st.floats(0, 1e6), st.just(1e308), st.floats())
    names = ("pass_us", "prefill_token_us", "decode_request_us", "kv_token_us", "swap_block_us")
    latency = st.builds(LatencyModel, **dict.fromkeys(names, float_figure))
    return ExecutorState(
        executor_id="executor-0",
        iteration=1,
        now_us=NOW_US,
        limits=ExecutorLimits(
            max_num_batched_tokens=draw(size),
            max_num_seqs=draw(size),
            block_size=draw(size),
            num_blocks=draw(size),
            num_swap_blocks=draw(size),
            max_model_len=draw(size),
        ),
        num_free_blocks=draw(st.sampled_from([0, 1, 40])),
        num_free_swap_blocks=draw(st.sampled_from([0, 1, 40])),
        latency=draw(st.none() | latency),
        requests=Requests.from_columns(num_requests, columns),
        draining=draw(st.booleans()),
    )


def fault_of(executor: ExecutorState) -> StateError | None:
    try:
        validate(cluster_of(executor))
    except StateError as error:
        return error
    return None


@settings(max_examples=num_examples(600))
@given(any_executors(), policies())
def test_any_state_is_planned_or_refused(executor: ExecutorState, policy: Policy) -> None:
    fault = fault_of(executor)
    event("planned" if fault is None else fault.reason.name)
    if fault is not None:
        assert fault.field.startswith("state.")
        return
    plan = plan_executor(executor, policy)
    assert verify(executor, plan, policy) == ()
    assert len(explain_executor(executor, plan, policy).id) == len(executor.requests)
