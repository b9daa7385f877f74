"""How long the scheduler takes over input that is meant to hurt: 10,000 rows of each kind, bytes to bytes.

A request is parsed, converted, checked and planned or refused, and the answer or the error made into bytes, all in this
process; so it is what one call can hold up the others for. Where a single row is at fault it is the last one. The exit
status is 1 where a kind takes longer than `--bound-ms`, by its fastest repetition: the others show how busy the machine
is.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterator

from google.protobuf.message import DecodeError

from harness.report import Figure, print_json, print_table
from metronome.scheduler.v1 import policy_pb2, scheduler_pb2, state_pb2
from scheduler_service import convert
from scheduler_service.core.errors import SchedulerError
from scheduler_service.core.explain import explain
from scheduler_service.core.plan import plan
from scheduler_service.core.policy import check_policy
from scheduler_service.core.validate import validate
from scheduler_service.errors import rich_status

NOW_US = 1_700_000_000_000_000
MOST_INT32, LEAST_INT64, MOST_INT64 = 2**31 - 1, -(2**63), 2**63 - 1

Request = scheduler_pb2.PlanRequest


def main() -> int:
    args = _arguments()
    figures = [_figure(name, data, args.rows, args.reps) for name, data in hostile_requests(args.rows)]
    if args.json:
        print_json(figures)
    else:
        print_table(f"hostile input, {args.rows} rows, bound {args.bound_ms:g} ms", figures)
    slow = [figure.name for figure in figures if min(figure.samples) > args.bound_ms]
    if slow:
        print(f"above {args.bound_ms:g} ms: {', '.join(slow)}", file=sys.stderr)
    return 1 if slow else 0


def _figure(name: str, data: bytes, num_rows: int, reps: int) -> Figure:
    answer = answer_to(data)
    samples = []
    for _ in range(reps):
        started = time.perf_counter_ns()
        answer_to(data)
        samples.append((time.perf_counter_ns() - started) / 1e6)
    return Figure(name=f"{name}: {answer}", unit="ms", samples=samples, sizes={"kind": name, "num_rows": num_rows})


def answer_to(data: bytes) -> str:
    """What the service says to these bytes, in a word."""
    try:
        request = Request.FromString(data)
        policy = convert.policy_from(request.policy, "policy")
        check_policy(policy, "policy")
        cluster = convert.cluster_from(request.state, "state")
        validate(cluster)
        plans = plan(cluster, policy)
        if request.explain:
            plans = explain(cluster, plans, policy)
        scheduler_pb2.PlanResponse(plans=map(convert.plan_message, plans)).SerializeToString()
    except DecodeError:
        return "MALFORMED_MESSAGE"
    except SchedulerError as error:
        rich_status(error).SerializeToString()
        return error.reason.name
    return "planned"


def hostile_requests(num_rows: int) -> Iterator[tuple[str, bytes]]:
    """Each kind of hostile input, by name."""
    for spoil in _KINDS:
        request = large_request(num_rows)
        spoil(request)
        yield spoil.__name__.replace("_", " "), request.SerializeToString()
    whole = large_request(num_rows).SerializeToString()
    yield "cut bytes", whole[:-5]
    yield "random bytes", random.Random(0).randbytes(len(whole))
    draw, noisy = random.Random(1), bytearray(whole)
    for _ in range(len(noisy) // 100):
        noisy[draw.randrange(100, len(noisy))] = draw.randrange(256)
    yield "one byte in a hundred changed", bytes(noisy)


def large_request(num_rows: int) -> Request:
    """A valid state: eight requests run, the others wait, and all wait longer than the cache can ever help."""
    draw = random.Random(0)
    num_running = 8
    executor = state_pb2.ExecutorState(
        executor_id="executor-0",
        iteration=100,
        limits=state_pb2.ExecutorLimits(
            max_num_batched_tokens=2048,
            max_num_seqs=256,
            block_size=16,
            num_blocks=4096,
            num_swap_blocks=1024,
            max_model_len=8192,
        ),
        num_free_blocks=4096 - 4 * num_running,
        num_free_swap_blocks=1024,
        latency=state_pb2.LatencyModel(pass_us=5000, prefill_token_us=20, decode_request_us=40),
    )
    runs = [row < num_running for row in range(num_rows)]
    table = executor.requests
    table.id.extend(draw.sample(range(1, 10 * num_rows), num_rows))
    table.status.extend(state_pb2.REQUEST_STATUS_RUNNING if run else state_pb2.REQUEST_STATUS_WAITING for run in runs)
    table.arrival_time_us.extend(NOW_US - draw.randrange(10**9) for _ in runs)
    table.priority.extend(draw.randrange(3) for _ in runs)
    table.tenant.extend(0 for _ in runs)
    table.num_prompt_tokens.extend(64 if run else draw.randint(1, 4000) for run in runs)
    table.num_output_tokens.extend(1 if run else 0 for run in runs)
    table.num_computed_tokens.extend(64 if run else 0 for run in runs)
    table.max_output_tokens.extend(512 for _ in runs)
    table.expected_output_tokens.extend(draw.choice([0, 100]) for _ in runs)
    table.num_draft_tokens.extend(0 for _ in runs)
    table.deadline_us.extend(0 for _ in runs)
    table.num_blocks.extend(4 if run else 0 for run in runs)
    for column in (table.num_shared_blocks, table.num_preemptions, table.times_overtaken):
        column.extend(0 for _ in runs)
    table.last_run_iteration.extend(99 if run else 0 for run in runs)
    return Request(
        state=state_pb2.ClusterState(now_us=NOW_US, executors=[executor]), policy=policy_pb2.Policy(watermark=0)
    )


def _table(request: Request) -> state_pb2.RequestTable:
    return request.state.executors[0].requests


def nothing_wrong(request: Request) -> None:
    """What the others compare with."""


def a_column_one_row_short(request: Request) -> None:
    _table(request).times_overtaken.pop()


def a_column_left_out(request: Request) -> None:
    _table(request).ClearField("status")


def one_id_twice(request: Request) -> None:
    _table(request).id[-1] = _table(request).id[0]


def all_ids_the_same(request: Request) -> None:
    _fill(_table(request).id, 1)


def negative_counts(request: Request) -> None:
    _table(request).num_preemptions[-1] = -1


def unknown_statuses(request: Request) -> None:
    _table(request).status[-1] = 9  # type: ignore[call-overload]


def impossible_counts(request: Request) -> None:
    _table(request).num_computed_tokens[-1] = MOST_INT32


def tenants_that_are_not_there(request: Request) -> None:
    _table(request).tenant[-1] = MOST_INT32


def counts_at_their_most(request: Request) -> None:
    """As large as the columns hold: the sums must not overflow, and nobody can ever fit."""
    for name in ("num_prompt_tokens", "max_output_tokens", "expected_output_tokens", "priority"):
        column = getattr(_table(request), name)
        column[8:] = [MOST_INT32] * (len(column) - 8)


def clocks_at_their_ends(request: Request) -> None:
    column = _table(request).arrival_time_us
    column[:] = [LEAST_INT64 if row % 2 else MOST_INT64 for row in range(len(column))]
    request.policy.ordering = policy_pb2.ORDERING_PRIORITY


def all_deadlines_missed(request: Request) -> None:
    _fill(_table(request).deadline_us, 1)
    request.policy.ordering = policy_pb2.ORDERING_EARLIEST_DEADLINE_FIRST
    request.policy.reject_missed_deadlines = True


def a_full_queue_of_which_all_are_turned_away(request: Request) -> None:
    request.policy.max_num_waiting = 0


def a_tenant_for_each_request(request: Request) -> None:
    count = len(_table(request).id)
    request.state.tenants.name.extend(str(tenant) for tenant in range(count))
    request.state.tenants.service.extend(float(tenant) for tenant in range(count))
    _table(request).tenant[:] = range(count)
    request.policy.ordering = policy_pb2.ORDERING_FAIR
    request.policy.max_num_waiting_per_tenant = 0


def weights_that_are_no_weights(request: Request) -> None:
    a_tenant_for_each_request(request)
    request.state.tenants.weight.extend([1.0] * (len(request.state.tenants.name) - 1) + [float("nan")])


def one_tenant_twice(request: Request) -> None:
    a_tenant_for_each_request(request)
    request.state.tenants.name[-1] = "0"


def all_alike_and_skipping(request: Request) -> None:
    """Ties to the last key, and a head of the line that never fits beside the others."""
    _fill(_table(request).arrival_time_us, NOW_US)
    _fill(_table(request).priority, 0)
    request.policy.head_of_line = policy_pb2.HEAD_OF_LINE_BACKFILL
    request.policy.admission = policy_pb2.ADMISSION_RESERVE


def all_evicted_again_and_again(request: Request) -> None:
    column = _table(request).num_preemptions
    column[8:] = [MOST_INT32] * (len(column) - 8)
    request.policy.ordering = policy_pb2.ORDERING_SHORTEST_JOB_FIRST


def a_reason_asked_for_each(request: Request) -> None:
    request.explain = True


def a_fleet(request: Request) -> None:
    """The same rows, dealt out to twenty executors."""
    executors = request.state.executors
    whole = state_pb2.ExecutorState.FromString(executors[0].SerializeToString())
    for number in range(1, 20):
        executors.add().CopyFrom(whole)
        executors[-1].executor_id = str(number)
    for number, executor in enumerate(executors):
        for field, column in executor.requests.ListFields():
            rows = getattr(whole.requests, field.name)[number :: len(executors)]
            del column[:]
            column.extend(rows)


_KINDS: tuple[Callable[[Request], None], ...] = (
    nothing_wrong,
    a_column_one_row_short,
    a_column_left_out,
    one_id_twice,
    all_ids_the_same,
    negative_counts,
    unknown_statuses,
    impossible_counts,
    tenants_that_are_not_there,
    counts_at_their_most,
    clocks_at_their_ends,
    all_deadlines_missed,
    a_full_queue_of_which_all_are_turned_away,
    a_tenant_for_each_request,
    weights_that_are_no_weights,
    one_tenant_twice,
    all_alike_and_skipping,
    all_evicted_again_and_again,
    a_reason_asked_for_each,
    a_fleet,
)


def _fill(column: object, value: int) -> None:
    column[:] = [value] * len(column)  # type: ignore[index, arg-type]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--reps", type=int, default=20, help="repetitions of each kind")
    parser.add_argument("--bound-ms", type=float, default=50.0)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
