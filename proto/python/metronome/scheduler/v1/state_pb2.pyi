from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RequestStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REQUEST_STATUS_UNSPECIFIED: _ClassVar[RequestStatus]
    REQUEST_STATUS_WAITING: _ClassVar[RequestStatus]
    REQUEST_STATUS_RUNNING: _ClassVar[RequestStatus]
    REQUEST_STATUS_SWAPPED: _ClassVar[RequestStatus]
    REQUEST_STATUS_LOADING: _ClassVar[RequestStatus]
REQUEST_STATUS_UNSPECIFIED: RequestStatus
REQUEST_STATUS_WAITING: RequestStatus
REQUEST_STATUS_RUNNING: RequestStatus
REQUEST_STATUS_SWAPPED: RequestStatus
REQUEST_STATUS_LOADING: RequestStatus

class ClusterState(_message.Message):
    __slots__ = ("now_us", "executors", "tenants")
    NOW_US_FIELD_NUMBER: _ClassVar[int]
    EXECUTORS_FIELD_NUMBER: _ClassVar[int]
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    now_us: int
    executors: _containers.RepeatedCompositeFieldContainer[ExecutorState]
    tenants: TenantTable
    def __init__(self, now_us: _Optional[int] = ..., executors: _Optional[_Iterable[_Union[ExecutorState, _Mapping]]] = ..., tenants: _Optional[_Union[TenantTable, _Mapping]] = ...) -> None: ...

class TenantTable(_message.Message):
    __slots__ = ("name", "weight", "service")
    NAME_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    name: _containers.RepeatedScalarFieldContainer[str]
    weight: _containers.RepeatedScalarFieldContainer[float]
    service: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, name: _Optional[_Iterable[str]] = ..., weight: _Optional[_Iterable[float]] = ..., service: _Optional[_Iterable[float]] = ...) -> None: ...

class ExecutorState(_message.Message):
    __slots__ = ("executor_id", "iteration", "limits", "num_free_blocks", "num_free_swap_blocks", "latency", "requests", "draining", "cached_prefixes")
    EXECUTOR_ID_FIELD_NUMBER: _ClassVar[int]
    ITERATION_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    NUM_FREE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_FREE_SWAP_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    LATENCY_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    CACHED_PREFIXES_FIELD_NUMBER: _ClassVar[int]
    executor_id: str
    iteration: int
    limits: ExecutorLimits
    num_free_blocks: int
    num_free_swap_blocks: int
    latency: LatencyModel
    requests: RequestTable
    draining: bool
    cached_prefixes: CachedPrefixTable
    def __init__(self, executor_id: _Optional[str] = ..., iteration: _Optional[int] = ..., limits: _Optional[_Union[ExecutorLimits, _Mapping]] = ..., num_free_blocks: _Optional[int] = ..., num_free_swap_blocks: _Optional[int] = ..., latency: _Optional[_Union[LatencyModel, _Mapping]] = ..., requests: _Optional[_Union[RequestTable, _Mapping]] = ..., draining: _Optional[bool] = ..., cached_prefixes: _Optional[_Union[CachedPrefixTable, _Mapping]] = ...) -> None: ...

class ExecutorLimits(_message.Message):
    __slots__ = ("max_num_batched_tokens", "max_num_seqs", "block_size", "num_blocks", "num_swap_blocks", "max_model_len", "max_num_waiting")
    MAX_NUM_BATCHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_SEQS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_SWAP_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_WAITING_FIELD_NUMBER: _ClassVar[int]
    max_num_batched_tokens: int
    max_num_seqs: int
    block_size: int
    num_blocks: int
    num_swap_blocks: int
    max_model_len: int
    max_num_waiting: int
    def __init__(self, max_num_batched_tokens: _Optional[int] = ..., max_num_seqs: _Optional[int] = ..., block_size: _Optional[int] = ..., num_blocks: _Optional[int] = ..., num_swap_blocks: _Optional[int] = ..., max_model_len: _Optional[int] = ..., max_num_waiting: _Optional[int] = ...) -> None: ...

class LatencyModel(_message.Message):
    __slots__ = ("pass_us", "prefill_token_us", "decode_request_us", "kv_token_us", "swap_block_us", "relative_error")
    PASS_US_FIELD_NUMBER: _ClassVar[int]
    PREFILL_TOKEN_US_FIELD_NUMBER: _ClassVar[int]
    DECODE_REQUEST_US_FIELD_NUMBER: _ClassVar[int]
    KV_TOKEN_US_FIELD_NUMBER: _ClassVar[int]
    SWAP_BLOCK_US_FIELD_NUMBER: _ClassVar[int]
    RELATIVE_ERROR_FIELD_NUMBER: _ClassVar[int]
    pass_us: float
    prefill_token_us: float
    decode_request_us: float
    kv_token_us: float
    swap_block_us: float
    relative_error: float
    def __init__(self, pass_us: _Optional[float] = ..., prefill_token_us: _Optional[float] = ..., decode_request_us: _Optional[float] = ..., kv_token_us: _Optional[float] = ..., swap_block_us: _Optional[float] = ..., relative_error: _Optional[float] = ...) -> None: ...

class CachedPrefixTable(_message.Message):
    __slots__ = ("parent", "num_free_blocks")
    PARENT_FIELD_NUMBER: _ClassVar[int]
    NUM_FREE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    parent: _containers.RepeatedScalarFieldContainer[int]
    num_free_blocks: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, parent: _Optional[_Iterable[int]] = ..., num_free_blocks: _Optional[_Iterable[int]] = ...) -> None: ...

class RequestTable(_message.Message):
    __slots__ = ("id", "status", "arrival_time_us", "priority", "tenant", "num_prompt_tokens", "num_output_tokens", "num_computed_tokens", "max_output_tokens", "expected_output_tokens", "num_draft_tokens", "deadline_us", "num_blocks", "num_shared_blocks", "num_preemptions", "last_run_iteration", "times_overtaken", "next_block_hash", "cached_prefix")
    ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    ARRIVAL_TIME_US_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_US_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_SHARED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    LAST_RUN_ITERATION_FIELD_NUMBER: _ClassVar[int]
    TIMES_OVERTAKEN_FIELD_NUMBER: _ClassVar[int]
    NEXT_BLOCK_HASH_FIELD_NUMBER: _ClassVar[int]
    CACHED_PREFIX_FIELD_NUMBER: _ClassVar[int]
    id: _containers.RepeatedScalarFieldContainer[int]
    status: _containers.RepeatedScalarFieldContainer[RequestStatus]
    arrival_time_us: _containers.RepeatedScalarFieldContainer[int]
    priority: _containers.RepeatedScalarFieldContainer[int]
    tenant: _containers.RepeatedScalarFieldContainer[int]
    num_prompt_tokens: _containers.RepeatedScalarFieldContainer[int]
    num_output_tokens: _containers.RepeatedScalarFieldContainer[int]
    num_computed_tokens: _containers.RepeatedScalarFieldContainer[int]
    max_output_tokens: _containers.RepeatedScalarFieldContainer[int]
    expected_output_tokens: _containers.RepeatedScalarFieldContainer[int]
    num_draft_tokens: _containers.RepeatedScalarFieldContainer[int]
    deadline_us: _containers.RepeatedScalarFieldContainer[int]
    num_blocks: _containers.RepeatedScalarFieldContainer[int]
    num_shared_blocks: _containers.RepeatedScalarFieldContainer[int]
    num_preemptions: _containers.RepeatedScalarFieldContainer[int]
    last_run_iteration: _containers.RepeatedScalarFieldContainer[int]
    times_overtaken: _containers.RepeatedScalarFieldContainer[int]
    next_block_hash: _containers.RepeatedScalarFieldContainer[int]
    cached_prefix: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, id: _Optional[_Iterable[int]] = ..., status: _Optional[_Iterable[_Union[RequestStatus, str]]] = ..., arrival_time_us: _Optional[_Iterable[int]] = ..., priority: _Optional[_Iterable[int]] = ..., tenant: _Optional[_Iterable[int]] = ..., num_prompt_tokens: _Optional[_Iterable[int]] = ..., num_output_tokens: _Optional[_Iterable[int]] = ..., num_computed_tokens: _Optional[_Iterable[int]] = ..., max_output_tokens: _Optional[_Iterable[int]] = ..., expected_output_tokens: _Optional[_Iterable[int]] = ..., num_draft_tokens: _Optional[_Iterable[int]] = ..., deadline_us: _Optional[_Iterable[int]] = ..., num_blocks: _Optional[_Iterable[int]] = ..., num_shared_blocks: _Optional[_Iterable[int]] = ..., num_preemptions: _Optional[_Iterable[int]] = ..., last_run_iteration: _Optional[_Iterable[int]] = ..., times_overtaken: _Optional[_Iterable[int]] = ..., next_block_hash: _Optional[_Iterable[int]] = ..., cached_prefix: _Optional[_Iterable[int]] = ...) -> None: ...
