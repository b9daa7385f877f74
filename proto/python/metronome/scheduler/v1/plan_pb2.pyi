from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EvictMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EVICT_MODE_UNSPECIFIED: _ClassVar[EvictMode]
    EVICT_MODE_SWAP: _ClassVar[EvictMode]
    EVICT_MODE_RECOMPUTE: _ClassVar[EvictMode]

class Reason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REASON_UNSPECIFIED: _ClassVar[Reason]
    REASON_DECODE: _ClassVar[Reason]
    REASON_PREFILL: _ClassVar[Reason]
    REASON_PREFILL_CHUNK_SIZE: _ClassVar[Reason]
    REASON_PREFILL_TOKEN_BUDGET: _ClassVar[Reason]
    REASON_ADMITTED: _ClassVar[Reason]
    REASON_READMITTED: _ClassVar[Reason]
    REASON_BACKFILLED: _ClassVar[Reason]
    REASON_RESUMED: _ClassVar[Reason]
    REASON_SKIPPED_AHEAD: _ClassVar[Reason]
    REASON_EVICTED_OUT_OF_BLOCKS: _ClassVar[Reason]
    REASON_EVICTED_FOR_PRIORITY: _ClassVar[Reason]
    REASON_WAITING_FOR_BLOCKS: _ClassVar[Reason]
    REASON_WAITING_FOR_SEQS: _ClassVar[Reason]
    REASON_WAITING_FOR_TOKEN_BUDGET: _ClassVar[Reason]
    REASON_WAITING_BEHIND: _ClassVar[Reason]
    REASON_WAITING_AFTER_EVICTION: _ClassVar[Reason]
    REASON_WAITING_FOR_KV: _ClassVar[Reason]
    REASON_WAITING_DRAINING: _ClassVar[Reason]
    REASON_WAITING_FOR_SHARED_PREFIX: _ClassVar[Reason]
    REASON_WAITING_FOR_PREFILL_SLOT: _ClassVar[Reason]
    REASON_WAITING_FOR_PHASE: _ClassVar[Reason]
    REASON_REJECTED_EXCEEDS_BLOCKS: _ClassVar[Reason]
    REASON_REJECTED_EXCEEDS_MODEL_LEN: _ClassVar[Reason]
    REASON_REJECTED_QUEUE_FULL: _ClassVar[Reason]
    REASON_REJECTED_TENANT_QUEUE_FULL: _ClassVar[Reason]
    REASON_REJECTED_DEADLINE: _ClassVar[Reason]
EVICT_MODE_UNSPECIFIED: EvictMode
EVICT_MODE_SWAP: EvictMode
EVICT_MODE_RECOMPUTE: EvictMode
REASON_UNSPECIFIED: Reason
REASON_DECODE: Reason
REASON_PREFILL: Reason
REASON_PREFILL_CHUNK_SIZE: Reason
REASON_PREFILL_TOKEN_BUDGET: Reason
REASON_ADMITTED: Reason
REASON_READMITTED: Reason
REASON_BACKFILLED: Reason
REASON_RESUMED: Reason
REASON_SKIPPED_AHEAD: Reason
REASON_EVICTED_OUT_OF_BLOCKS: Reason
REASON_EVICTED_FOR_PRIORITY: Reason
REASON_WAITING_FOR_BLOCKS: Reason
REASON_WAITING_FOR_SEQS: Reason
REASON_WAITING_FOR_TOKEN_BUDGET: Reason
REASON_WAITING_BEHIND: Reason
REASON_WAITING_AFTER_EVICTION: Reason
REASON_WAITING_FOR_KV: Reason
REASON_WAITING_DRAINING: Reason
REASON_WAITING_FOR_SHARED_PREFIX: Reason
REASON_WAITING_FOR_PREFILL_SLOT: Reason
REASON_WAITING_FOR_PHASE: Reason
REASON_REJECTED_EXCEEDS_BLOCKS: Reason
REASON_REJECTED_EXCEEDS_MODEL_LEN: Reason
REASON_REJECTED_QUEUE_FULL: Reason
REASON_REJECTED_TENANT_QUEUE_FULL: Reason
REASON_REJECTED_DEADLINE: Reason

class ExecutorPlan(_message.Message):
    __slots__ = ("executor_id", "iteration", "scheduled", "admit", "resume", "evict", "reject", "composition", "predicted_time_us", "shortfall", "explanations", "digest", "kv_residency_charge")
    EXECUTOR_ID_FIELD_NUMBER: _ClassVar[int]
    ITERATION_FIELD_NUMBER: _ClassVar[int]
    SCHEDULED_FIELD_NUMBER: _ClassVar[int]
    ADMIT_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    EVICT_FIELD_NUMBER: _ClassVar[int]
    REJECT_FIELD_NUMBER: _ClassVar[int]
    COMPOSITION_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_TIME_US_FIELD_NUMBER: _ClassVar[int]
    SHORTFALL_FIELD_NUMBER: _ClassVar[int]
    EXPLANATIONS_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    KV_RESIDENCY_CHARGE_FIELD_NUMBER: _ClassVar[int]
    executor_id: str
    iteration: int
    scheduled: ScheduledTable
    admit: TransitionTable
    resume: TransitionTable
    evict: EvictTable
    reject: RejectTable
    composition: PassComposition
    predicted_time_us: int
    shortfall: Shortfall
    explanations: ExplanationTable
    digest: int
    kv_residency_charge: float
    def __init__(self, executor_id: _Optional[str] = ..., iteration: _Optional[int] = ..., scheduled: _Optional[_Union[ScheduledTable, _Mapping]] = ..., admit: _Optional[_Union[TransitionTable, _Mapping]] = ..., resume: _Optional[_Union[TransitionTable, _Mapping]] = ..., evict: _Optional[_Union[EvictTable, _Mapping]] = ..., reject: _Optional[_Union[RejectTable, _Mapping]] = ..., composition: _Optional[_Union[PassComposition, _Mapping]] = ..., predicted_time_us: _Optional[int] = ..., shortfall: _Optional[_Union[Shortfall, _Mapping]] = ..., explanations: _Optional[_Union[ExplanationTable, _Mapping]] = ..., digest: _Optional[int] = ..., kv_residency_charge: _Optional[float] = ...) -> None: ...

class ScheduledTable(_message.Message):
    __slots__ = ("id", "num_tokens", "reason")
    ID_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    id: _containers.RepeatedScalarFieldContainer[int]
    num_tokens: _containers.RepeatedScalarFieldContainer[int]
    reason: _containers.RepeatedScalarFieldContainer[Reason]
    def __init__(self, id: _Optional[_Iterable[int]] = ..., num_tokens: _Optional[_Iterable[int]] = ..., reason: _Optional[_Iterable[_Union[Reason, str]]] = ...) -> None: ...

class TransitionTable(_message.Message):
    __slots__ = ("id", "reason")
    ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    id: _containers.RepeatedScalarFieldContainer[int]
    reason: _containers.RepeatedScalarFieldContainer[Reason]
    def __init__(self, id: _Optional[_Iterable[int]] = ..., reason: _Optional[_Iterable[_Union[Reason, str]]] = ...) -> None: ...

class EvictTable(_message.Message):
    __slots__ = ("id", "mode", "reason")
    ID_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    id: _containers.RepeatedScalarFieldContainer[int]
    mode: _containers.RepeatedScalarFieldContainer[EvictMode]
    reason: _containers.RepeatedScalarFieldContainer[Reason]
    def __init__(self, id: _Optional[_Iterable[int]] = ..., mode: _Optional[_Iterable[_Union[EvictMode, str]]] = ..., reason: _Optional[_Iterable[_Union[Reason, str]]] = ...) -> None: ...

class RejectTable(_message.Message):
    __slots__ = ("id", "reason", "needed", "available", "estimated_wait_us")
    ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    NEEDED_FIELD_NUMBER: _ClassVar[int]
    AVAILABLE_FIELD_NUMBER: _ClassVar[int]
    ESTIMATED_WAIT_US_FIELD_NUMBER: _ClassVar[int]
    id: _containers.RepeatedScalarFieldContainer[int]
    reason: _containers.RepeatedScalarFieldContainer[Reason]
    needed: _containers.RepeatedScalarFieldContainer[int]
    available: _containers.RepeatedScalarFieldContainer[int]
    estimated_wait_us: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, id: _Optional[_Iterable[int]] = ..., reason: _Optional[_Iterable[_Union[Reason, str]]] = ..., needed: _Optional[_Iterable[int]] = ..., available: _Optional[_Iterable[int]] = ..., estimated_wait_us: _Optional[_Iterable[int]] = ...) -> None: ...

class PassComposition(_message.Message):
    __slots__ = ("num_prefill_tokens", "num_decode_tokens", "num_prefill_requests", "num_decode_requests")
    NUM_PREFILL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_DECODE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_PREFILL_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    NUM_DECODE_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    num_prefill_tokens: int
    num_decode_tokens: int
    num_prefill_requests: int
    num_decode_requests: int
    def __init__(self, num_prefill_tokens: _Optional[int] = ..., num_decode_tokens: _Optional[int] = ..., num_prefill_requests: _Optional[int] = ..., num_decode_requests: _Optional[int] = ...) -> None: ...

class Shortfall(_message.Message):
    __slots__ = ("id", "reason", "needed", "available")
    ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    NEEDED_FIELD_NUMBER: _ClassVar[int]
    AVAILABLE_FIELD_NUMBER: _ClassVar[int]
    id: int
    reason: Reason
    needed: int
    available: int
    def __init__(self, id: _Optional[int] = ..., reason: _Optional[_Union[Reason, str]] = ..., needed: _Optional[int] = ..., available: _Optional[int] = ...) -> None: ...

class ExplanationTable(_message.Message):
    __slots__ = ("id", "reason", "needed", "available", "behind_id")
    ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    NEEDED_FIELD_NUMBER: _ClassVar[int]
    AVAILABLE_FIELD_NUMBER: _ClassVar[int]
    BEHIND_ID_FIELD_NUMBER: _ClassVar[int]
    id: _containers.RepeatedScalarFieldContainer[int]
    reason: _containers.RepeatedScalarFieldContainer[Reason]
    needed: _containers.RepeatedScalarFieldContainer[int]
    available: _containers.RepeatedScalarFieldContainer[int]
    behind_id: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, id: _Optional[_Iterable[int]] = ..., reason: _Optional[_Iterable[_Union[Reason, str]]] = ..., needed: _Optional[_Iterable[int]] = ..., available: _Optional[_Iterable[int]] = ..., behind_id: _Optional[_Iterable[int]] = ...) -> None: ...
