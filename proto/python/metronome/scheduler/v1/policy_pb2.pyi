from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Ordering(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ORDERING_UNSPECIFIED: _ClassVar[Ordering]
    ORDERING_FIFO: _ClassVar[Ordering]
    ORDERING_SHORTEST_JOB_FIRST: _ClassVar[Ordering]
    ORDERING_PRIORITY: _ClassVar[Ordering]
    ORDERING_EARLIEST_DEADLINE_FIRST: _ClassVar[Ordering]
    ORDERING_FAIR: _ClassVar[Ordering]
    ORDERING_SHORTEST_PREFILL_FIRST: _ClassVar[Ordering]
    ORDERING_FEWEST_LATE: _ClassVar[Ordering]

class Admission(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ADMISSION_UNSPECIFIED: _ClassVar[Admission]
    ADMISSION_RESERVE: _ClassVar[Admission]
    ADMISSION_WATERMARK: _ClassVar[Admission]
    ADMISSION_PREDICTIVE: _ClassVar[Admission]

class Preemption(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PREEMPTION_UNSPECIFIED: _ClassVar[Preemption]
    PREEMPTION_NEVER: _ClassVar[Preemption]
    PREEMPTION_WHEN_FULL: _ClassVar[Preemption]
    PREEMPTION_FOR_PRIORITY: _ClassVar[Preemption]

class Victim(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    VICTIM_UNSPECIFIED: _ClassVar[Victim]
    VICTIM_LAST_IN_ORDER: _ClassVar[Victim]
    VICTIM_CHEAPEST: _ClassVar[Victim]

class Eviction(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EVICTION_UNSPECIFIED: _ClassVar[Eviction]
    EVICTION_SWAP: _ClassVar[Eviction]
    EVICTION_RECOMPUTE: _ClassVar[Eviction]
    EVICTION_AUTO: _ClassVar[Eviction]

class PrefillSharing(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PREFILL_SHARING_UNSPECIFIED: _ClassVar[PrefillSharing]
    PREFILL_SHARING_FIRST_COME: _ClassVar[PrefillSharing]
    PREFILL_SHARING_EQUAL: _ClassVar[PrefillSharing]
    PREFILL_SHARING_IN_ORDER: _ClassVar[PrefillSharing]

class BatchComposition(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BATCH_COMPOSITION_UNSPECIFIED: _ClassVar[BatchComposition]
    BATCH_COMPOSITION_MIXED: _ClassVar[BatchComposition]
    BATCH_COMPOSITION_PREFILL_FIRST: _ClassVar[BatchComposition]
    BATCH_COMPOSITION_DECODE_FIRST: _ClassVar[BatchComposition]
    BATCH_COMPOSITION_SEPARATE: _ClassVar[BatchComposition]

class HeadOfLine(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    HEAD_OF_LINE_UNSPECIFIED: _ClassVar[HeadOfLine]
    HEAD_OF_LINE_STRICT: _ClassVar[HeadOfLine]
    HEAD_OF_LINE_SKIP: _ClassVar[HeadOfLine]
    HEAD_OF_LINE_BACKFILL: _ClassVar[HeadOfLine]
ORDERING_UNSPECIFIED: Ordering
ORDERING_FIFO: Ordering
ORDERING_SHORTEST_JOB_FIRST: Ordering
ORDERING_PRIORITY: Ordering
ORDERING_EARLIEST_DEADLINE_FIRST: Ordering
ORDERING_FAIR: Ordering
ORDERING_SHORTEST_PREFILL_FIRST: Ordering
ORDERING_FEWEST_LATE: Ordering
ADMISSION_UNSPECIFIED: Admission
ADMISSION_RESERVE: Admission
ADMISSION_WATERMARK: Admission
ADMISSION_PREDICTIVE: Admission
PREEMPTION_UNSPECIFIED: Preemption
PREEMPTION_NEVER: Preemption
PREEMPTION_WHEN_FULL: Preemption
PREEMPTION_FOR_PRIORITY: Preemption
VICTIM_UNSPECIFIED: Victim
VICTIM_LAST_IN_ORDER: Victim
VICTIM_CHEAPEST: Victim
EVICTION_UNSPECIFIED: Eviction
EVICTION_SWAP: Eviction
EVICTION_RECOMPUTE: Eviction
EVICTION_AUTO: Eviction
PREFILL_SHARING_UNSPECIFIED: PrefillSharing
PREFILL_SHARING_FIRST_COME: PrefillSharing
PREFILL_SHARING_EQUAL: PrefillSharing
PREFILL_SHARING_IN_ORDER: PrefillSharing
BATCH_COMPOSITION_UNSPECIFIED: BatchComposition
BATCH_COMPOSITION_MIXED: BatchComposition
BATCH_COMPOSITION_PREFILL_FIRST: BatchComposition
BATCH_COMPOSITION_DECODE_FIRST: BatchComposition
BATCH_COMPOSITION_SEPARATE: BatchComposition
HEAD_OF_LINE_UNSPECIFIED: HeadOfLine
HEAD_OF_LINE_STRICT: HeadOfLine
HEAD_OF_LINE_SKIP: HeadOfLine
HEAD_OF_LINE_BACKFILL: HeadOfLine

class Policy(_message.Message):
    __slots__ = ("ordering", "aging_seconds", "kv_residency_charge", "admission", "watermark", "preemption", "victim", "max_preemptions", "eviction", "chunk_size_tokens", "max_num_partial_prefills", "prefill_sharing", "target_inter_token_latency_us", "batch_composition", "head_of_line", "max_times_overtaken", "hold_for_shared_prefix", "max_num_waiting", "max_num_waiting_per_tenant", "reject_missed_deadlines", "max_inter_token_slowdown", "ordering_within_tenant", "target_time_to_first_token_us")
    ORDERING_FIELD_NUMBER: _ClassVar[int]
    AGING_SECONDS_FIELD_NUMBER: _ClassVar[int]
    KV_RESIDENCY_CHARGE_FIELD_NUMBER: _ClassVar[int]
    ADMISSION_FIELD_NUMBER: _ClassVar[int]
    WATERMARK_FIELD_NUMBER: _ClassVar[int]
    PREEMPTION_FIELD_NUMBER: _ClassVar[int]
    VICTIM_FIELD_NUMBER: _ClassVar[int]
    MAX_PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    EVICTION_FIELD_NUMBER: _ClassVar[int]
    CHUNK_SIZE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_PARTIAL_PREFILLS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_SHARING_FIELD_NUMBER: _ClassVar[int]
    TARGET_INTER_TOKEN_LATENCY_US_FIELD_NUMBER: _ClassVar[int]
    BATCH_COMPOSITION_FIELD_NUMBER: _ClassVar[int]
    HEAD_OF_LINE_FIELD_NUMBER: _ClassVar[int]
    MAX_TIMES_OVERTAKEN_FIELD_NUMBER: _ClassVar[int]
    HOLD_FOR_SHARED_PREFIX_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_WAITING_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_WAITING_PER_TENANT_FIELD_NUMBER: _ClassVar[int]
    REJECT_MISSED_DEADLINES_FIELD_NUMBER: _ClassVar[int]
    MAX_INTER_TOKEN_SLOWDOWN_FIELD_NUMBER: _ClassVar[int]
    ORDERING_WITHIN_TENANT_FIELD_NUMBER: _ClassVar[int]
    TARGET_TIME_TO_FIRST_TOKEN_US_FIELD_NUMBER: _ClassVar[int]
    ordering: Ordering
    aging_seconds: float
    kv_residency_charge: float
    admission: Admission
    watermark: float
    preemption: Preemption
    victim: Victim
    max_preemptions: int
    eviction: Eviction
    chunk_size_tokens: int
    max_num_partial_prefills: int
    prefill_sharing: PrefillSharing
    target_inter_token_latency_us: int
    batch_composition: BatchComposition
    head_of_line: HeadOfLine
    max_times_overtaken: int
    hold_for_shared_prefix: bool
    max_num_waiting: int
    max_num_waiting_per_tenant: int
    reject_missed_deadlines: bool
    max_inter_token_slowdown: float
    ordering_within_tenant: Ordering
    target_time_to_first_token_us: int
    def __init__(self, ordering: _Optional[_Union[Ordering, str]] = ..., aging_seconds: _Optional[float] = ..., kv_residency_charge: _Optional[float] = ..., admission: _Optional[_Union[Admission, str]] = ..., watermark: _Optional[float] = ..., preemption: _Optional[_Union[Preemption, str]] = ..., victim: _Optional[_Union[Victim, str]] = ..., max_preemptions: _Optional[int] = ..., eviction: _Optional[_Union[Eviction, str]] = ..., chunk_size_tokens: _Optional[int] = ..., max_num_partial_prefills: _Optional[int] = ..., prefill_sharing: _Optional[_Union[PrefillSharing, str]] = ..., target_inter_token_latency_us: _Optional[int] = ..., batch_composition: _Optional[_Union[BatchComposition, str]] = ..., head_of_line: _Optional[_Union[HeadOfLine, str]] = ..., max_times_overtaken: _Optional[int] = ..., hold_for_shared_prefix: _Optional[bool] = ..., max_num_waiting: _Optional[int] = ..., max_num_waiting_per_tenant: _Optional[int] = ..., reject_missed_deadlines: _Optional[bool] = ..., max_inter_token_slowdown: _Optional[float] = ..., ordering_within_tenant: _Optional[_Union[Ordering, str]] = ..., target_time_to_first_token_us: _Optional[int] = ...) -> None: ...
