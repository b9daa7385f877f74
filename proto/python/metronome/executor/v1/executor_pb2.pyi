import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from metronome.scheduler.v1 import state_pb2 as _state_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PlanSource(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PLAN_SOURCE_UNSPECIFIED: _ClassVar[PlanSource]
    PLAN_SOURCE_OVERLAPPED: _ClassVar[PlanSource]
    PLAN_SOURCE_DIRECT: _ClassVar[PlanSource]
    PLAN_SOURCE_SAFE: _ClassVar[PlanSource]
PLAN_SOURCE_UNSPECIFIED: PlanSource
PLAN_SOURCE_OVERLAPPED: PlanSource
PLAN_SOURCE_DIRECT: PlanSource
PLAN_SOURCE_SAFE: PlanSource

class GetStateRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStateResponse(_message.Message):
    __slots__ = ("state", "request_names", "counters", "planning_failure")
    STATE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_NAMES_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    PLANNING_FAILURE_FIELD_NUMBER: _ClassVar[int]
    state: _state_pb2.ClusterState
    request_names: _containers.RepeatedCompositeFieldContainer[RequestName]
    counters: Counters
    planning_failure: str
    def __init__(self, state: _Optional[_Union[_state_pb2.ClusterState, _Mapping]] = ..., request_names: _Optional[_Iterable[_Union[RequestName, _Mapping]]] = ..., counters: _Optional[_Union[Counters, _Mapping]] = ..., planning_failure: _Optional[str] = ...) -> None: ...

class RequestName(_message.Message):
    __slots__ = ("id", "request_id")
    ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    id: int
    request_id: str
    def __init__(self, id: _Optional[int] = ..., request_id: _Optional[str] = ...) -> None: ...

class WatchStateRequest(_message.Message):
    __slots__ = ("min_interval", "omit_requests")
    MIN_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    OMIT_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    min_interval: _duration_pb2.Duration
    omit_requests: bool
    def __init__(self, min_interval: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., omit_requests: _Optional[bool] = ...) -> None: ...

class WatchStateResponse(_message.Message):
    __slots__ = ("state", "passes")
    STATE_FIELD_NUMBER: _ClassVar[int]
    PASSES_FIELD_NUMBER: _ClassVar[int]
    state: GetStateResponse
    passes: _containers.RepeatedCompositeFieldContainer[Pass]
    def __init__(self, state: _Optional[_Union[GetStateResponse, _Mapping]] = ..., passes: _Optional[_Iterable[_Union[Pass, _Mapping]]] = ...) -> None: ...

class Pass(_message.Message):
    __slots__ = ("iteration", "start_time_us", "num_prefill_tokens", "num_decode_tokens", "num_prefill_requests", "num_decode_requests", "num_running", "num_waiting", "num_swapped", "num_free_blocks", "num_free_swap_blocks", "num_admitted", "num_resumed", "num_evicted_swap", "num_evicted_recompute", "num_rejected", "num_finished", "plan_source", "plan_wait_us", "plan_round_trip_us", "build_us", "forward_us", "emit_us", "total_us", "predicted_us", "num_draft_tokens", "num_accepted_draft_tokens", "num_kv_tokens", "num_chunk_kv_tokens", "num_logits_rows")
    ITERATION_FIELD_NUMBER: _ClassVar[int]
    START_TIME_US_FIELD_NUMBER: _ClassVar[int]
    NUM_PREFILL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_DECODE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_PREFILL_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    NUM_DECODE_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    NUM_RUNNING_FIELD_NUMBER: _ClassVar[int]
    NUM_WAITING_FIELD_NUMBER: _ClassVar[int]
    NUM_SWAPPED_FIELD_NUMBER: _ClassVar[int]
    NUM_FREE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_FREE_SWAP_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_ADMITTED_FIELD_NUMBER: _ClassVar[int]
    NUM_RESUMED_FIELD_NUMBER: _ClassVar[int]
    NUM_EVICTED_SWAP_FIELD_NUMBER: _ClassVar[int]
    NUM_EVICTED_RECOMPUTE_FIELD_NUMBER: _ClassVar[int]
    NUM_REJECTED_FIELD_NUMBER: _ClassVar[int]
    NUM_FINISHED_FIELD_NUMBER: _ClassVar[int]
    PLAN_SOURCE_FIELD_NUMBER: _ClassVar[int]
    PLAN_WAIT_US_FIELD_NUMBER: _ClassVar[int]
    PLAN_ROUND_TRIP_US_FIELD_NUMBER: _ClassVar[int]
    BUILD_US_FIELD_NUMBER: _ClassVar[int]
    FORWARD_US_FIELD_NUMBER: _ClassVar[int]
    EMIT_US_FIELD_NUMBER: _ClassVar[int]
    TOTAL_US_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_US_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_ACCEPTED_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_KV_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_CHUNK_KV_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_LOGITS_ROWS_FIELD_NUMBER: _ClassVar[int]
    iteration: int
    start_time_us: int
    num_prefill_tokens: int
    num_decode_tokens: int
    num_prefill_requests: int
    num_decode_requests: int
    num_running: int
    num_waiting: int
    num_swapped: int
    num_free_blocks: int
    num_free_swap_blocks: int
    num_admitted: int
    num_resumed: int
    num_evicted_swap: int
    num_evicted_recompute: int
    num_rejected: int
    num_finished: int
    plan_source: PlanSource
    plan_wait_us: int
    plan_round_trip_us: int
    build_us: int
    forward_us: int
    emit_us: int
    total_us: int
    predicted_us: int
    num_draft_tokens: int
    num_accepted_draft_tokens: int
    num_kv_tokens: int
    num_chunk_kv_tokens: int
    num_logits_rows: int
    def __init__(self, iteration: _Optional[int] = ..., start_time_us: _Optional[int] = ..., num_prefill_tokens: _Optional[int] = ..., num_decode_tokens: _Optional[int] = ..., num_prefill_requests: _Optional[int] = ..., num_decode_requests: _Optional[int] = ..., num_running: _Optional[int] = ..., num_waiting: _Optional[int] = ..., num_swapped: _Optional[int] = ..., num_free_blocks: _Optional[int] = ..., num_free_swap_blocks: _Optional[int] = ..., num_admitted: _Optional[int] = ..., num_resumed: _Optional[int] = ..., num_evicted_swap: _Optional[int] = ..., num_evicted_recompute: _Optional[int] = ..., num_rejected: _Optional[int] = ..., num_finished: _Optional[int] = ..., plan_source: _Optional[_Union[PlanSource, str]] = ..., plan_wait_us: _Optional[int] = ..., plan_round_trip_us: _Optional[int] = ..., build_us: _Optional[int] = ..., forward_us: _Optional[int] = ..., emit_us: _Optional[int] = ..., total_us: _Optional[int] = ..., predicted_us: _Optional[int] = ..., num_draft_tokens: _Optional[int] = ..., num_accepted_draft_tokens: _Optional[int] = ..., num_kv_tokens: _Optional[int] = ..., num_chunk_kv_tokens: _Optional[int] = ..., num_logits_rows: _Optional[int] = ...) -> None: ...

class Counters(_message.Message):
    __slots__ = ("num_iterations", "num_accepted", "num_finished", "num_cancelled", "num_expired", "num_rejected", "num_failed", "num_prefill_tokens", "num_output_tokens", "num_evicted_swap", "num_evicted_recompute", "num_safe_plans", "num_refused_plans", "num_plan_failures", "num_swap_failures", "num_prefix_query_tokens", "num_prefix_hit_tokens", "num_draft_tokens", "num_accepted_draft_tokens")
    NUM_ITERATIONS_FIELD_NUMBER: _ClassVar[int]
    NUM_ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    NUM_FINISHED_FIELD_NUMBER: _ClassVar[int]
    NUM_CANCELLED_FIELD_NUMBER: _ClassVar[int]
    NUM_EXPIRED_FIELD_NUMBER: _ClassVar[int]
    NUM_REJECTED_FIELD_NUMBER: _ClassVar[int]
    NUM_FAILED_FIELD_NUMBER: _ClassVar[int]
    NUM_PREFILL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_EVICTED_SWAP_FIELD_NUMBER: _ClassVar[int]
    NUM_EVICTED_RECOMPUTE_FIELD_NUMBER: _ClassVar[int]
    NUM_SAFE_PLANS_FIELD_NUMBER: _ClassVar[int]
    NUM_REFUSED_PLANS_FIELD_NUMBER: _ClassVar[int]
    NUM_PLAN_FAILURES_FIELD_NUMBER: _ClassVar[int]
    NUM_SWAP_FAILURES_FIELD_NUMBER: _ClassVar[int]
    NUM_PREFIX_QUERY_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_PREFIX_HIT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_ACCEPTED_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    num_iterations: int
    num_accepted: int
    num_finished: int
    num_cancelled: int
    num_expired: int
    num_rejected: int
    num_failed: int
    num_prefill_tokens: int
    num_output_tokens: int
    num_evicted_swap: int
    num_evicted_recompute: int
    num_safe_plans: int
    num_refused_plans: int
    num_plan_failures: int
    num_swap_failures: int
    num_prefix_query_tokens: int
    num_prefix_hit_tokens: int
    num_draft_tokens: int
    num_accepted_draft_tokens: int
    def __init__(self, num_iterations: _Optional[int] = ..., num_accepted: _Optional[int] = ..., num_finished: _Optional[int] = ..., num_cancelled: _Optional[int] = ..., num_expired: _Optional[int] = ..., num_rejected: _Optional[int] = ..., num_failed: _Optional[int] = ..., num_prefill_tokens: _Optional[int] = ..., num_output_tokens: _Optional[int] = ..., num_evicted_swap: _Optional[int] = ..., num_evicted_recompute: _Optional[int] = ..., num_safe_plans: _Optional[int] = ..., num_refused_plans: _Optional[int] = ..., num_plan_failures: _Optional[int] = ..., num_swap_failures: _Optional[int] = ..., num_prefix_query_tokens: _Optional[int] = ..., num_prefix_hit_tokens: _Optional[int] = ..., num_draft_tokens: _Optional[int] = ..., num_accepted_draft_tokens: _Optional[int] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
