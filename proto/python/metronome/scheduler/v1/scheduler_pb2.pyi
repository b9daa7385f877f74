from metronome.scheduler.v1 import plan_pb2 as _plan_pb2
from metronome.scheduler.v1 import policy_pb2 as _policy_pb2
from metronome.scheduler.v1 import state_pb2 as _state_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Placement(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PLACEMENT_UNSPECIFIED: _ClassVar[Placement]
    PLACEMENT_ROUND_ROBIN: _ClassVar[Placement]
    PLACEMENT_LEAST_LOADED: _ClassVar[Placement]
    PLACEMENT_CACHED_PREFIX: _ClassVar[Placement]
    PLACEMENT_POWER_OF_TWO_CHOICES: _ClassVar[Placement]

class Invariant(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    INVARIANT_UNSPECIFIED: _ClassVar[Invariant]
    INVARIANT_BATCH_LIMITS: _ClassVar[Invariant]
    INVARIANT_BLOCKS: _ClassVar[Invariant]
    INVARIANT_TOKENS: _ClassVar[Invariant]
    INVARIANT_ONE_FATE: _ClassVar[Invariant]
    INVARIANT_PROGRESS: _ClassVar[Invariant]
    INVARIANT_NO_LIVELOCK: _ClassVar[Invariant]
    INVARIANT_NO_STARVATION: _ClassVar[Invariant]
    INVARIANT_DETERMINISM: _ClassVar[Invariant]
    INVARIANT_EVICTION_ALLOWED: _ClassVar[Invariant]
    INVARIANT_DECODE_DELAY: _ClassVar[Invariant]
    INVARIANT_SHARED_PREFIX: _ClassVar[Invariant]
PLACEMENT_UNSPECIFIED: Placement
PLACEMENT_ROUND_ROBIN: Placement
PLACEMENT_LEAST_LOADED: Placement
PLACEMENT_CACHED_PREFIX: Placement
PLACEMENT_POWER_OF_TWO_CHOICES: Placement
INVARIANT_UNSPECIFIED: Invariant
INVARIANT_BATCH_LIMITS: Invariant
INVARIANT_BLOCKS: Invariant
INVARIANT_TOKENS: Invariant
INVARIANT_ONE_FATE: Invariant
INVARIANT_PROGRESS: Invariant
INVARIANT_NO_LIVELOCK: Invariant
INVARIANT_NO_STARVATION: Invariant
INVARIANT_DETERMINISM: Invariant
INVARIANT_EVICTION_ALLOWED: Invariant
INVARIANT_DECODE_DELAY: Invariant
INVARIANT_SHARED_PREFIX: Invariant

class PlanRequest(_message.Message):
    __slots__ = ("state", "policy", "profile", "explain")
    STATE_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    EXPLAIN_FIELD_NUMBER: _ClassVar[int]
    state: _state_pb2.ClusterState
    policy: _policy_pb2.Policy
    profile: str
    explain: bool
    def __init__(self, state: _Optional[_Union[_state_pb2.ClusterState, _Mapping]] = ..., policy: _Optional[_Union[_policy_pb2.Policy, _Mapping]] = ..., profile: _Optional[str] = ..., explain: _Optional[bool] = ...) -> None: ...

class PlanResponse(_message.Message):
    __slots__ = ("plans",)
    PLANS_FIELD_NUMBER: _ClassVar[int]
    plans: _containers.RepeatedCompositeFieldContainer[_plan_pb2.ExecutorPlan]
    def __init__(self, plans: _Optional[_Iterable[_Union[_plan_pb2.ExecutorPlan, _Mapping]]] = ...) -> None: ...

class VerifyRequest(_message.Message):
    __slots__ = ("state", "plans", "policy", "profile")
    STATE_FIELD_NUMBER: _ClassVar[int]
    PLANS_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    state: _state_pb2.ClusterState
    plans: _containers.RepeatedCompositeFieldContainer[_plan_pb2.ExecutorPlan]
    policy: _policy_pb2.Policy
    profile: str
    def __init__(self, state: _Optional[_Union[_state_pb2.ClusterState, _Mapping]] = ..., plans: _Optional[_Iterable[_Union[_plan_pb2.ExecutorPlan, _Mapping]]] = ..., policy: _Optional[_Union[_policy_pb2.Policy, _Mapping]] = ..., profile: _Optional[str] = ...) -> None: ...

class VerifyResponse(_message.Message):
    __slots__ = ("violations",)
    VIOLATIONS_FIELD_NUMBER: _ClassVar[int]
    violations: _containers.RepeatedCompositeFieldContainer[Violation]
    def __init__(self, violations: _Optional[_Iterable[_Union[Violation, _Mapping]]] = ...) -> None: ...

class Violation(_message.Message):
    __slots__ = ("executor_id", "invariant", "ids", "description")
    EXECUTOR_ID_FIELD_NUMBER: _ClassVar[int]
    INVARIANT_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    executor_id: str
    invariant: Invariant
    ids: _containers.RepeatedScalarFieldContainer[int]
    description: str
    def __init__(self, executor_id: _Optional[str] = ..., invariant: _Optional[_Union[Invariant, str]] = ..., ids: _Optional[_Iterable[int]] = ..., description: _Optional[str] = ...) -> None: ...

class PlaceRequest(_message.Message):
    __slots__ = ("state", "requests", "num_cached_tokens", "placement", "seed", "excluded_executor_ids")
    STATE_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    EXCLUDED_EXECUTOR_IDS_FIELD_NUMBER: _ClassVar[int]
    state: _state_pb2.ClusterState
    requests: _state_pb2.RequestTable
    num_cached_tokens: _containers.RepeatedScalarFieldContainer[int]
    placement: Placement
    seed: int
    excluded_executor_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, state: _Optional[_Union[_state_pb2.ClusterState, _Mapping]] = ..., requests: _Optional[_Union[_state_pb2.RequestTable, _Mapping]] = ..., num_cached_tokens: _Optional[_Iterable[int]] = ..., placement: _Optional[_Union[Placement, str]] = ..., seed: _Optional[int] = ..., excluded_executor_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class PlaceResponse(_message.Message):
    __slots__ = ("assignments",)
    ASSIGNMENTS_FIELD_NUMBER: _ClassVar[int]
    assignments: _containers.RepeatedCompositeFieldContainer[Assignment]
    def __init__(self, assignments: _Optional[_Iterable[_Union[Assignment, _Mapping]]] = ...) -> None: ...

class Assignment(_message.Message):
    __slots__ = ("id", "executor_id", "reason", "estimated_wait_us")
    ID_FIELD_NUMBER: _ClassVar[int]
    EXECUTOR_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ESTIMATED_WAIT_US_FIELD_NUMBER: _ClassVar[int]
    id: int
    executor_id: str
    reason: _plan_pb2.Reason
    estimated_wait_us: int
    def __init__(self, id: _Optional[int] = ..., executor_id: _Optional[str] = ..., reason: _Optional[_Union[_plan_pb2.Reason, str]] = ..., estimated_wait_us: _Optional[int] = ...) -> None: ...

class ListProfilesRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListProfilesResponse(_message.Message):
    __slots__ = ("profiles", "next_page_token")
    PROFILES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    profiles: _containers.RepeatedCompositeFieldContainer[Profile]
    next_page_token: str
    def __init__(self, profiles: _Optional[_Iterable[_Union[Profile, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class Profile(_message.Message):
    __slots__ = ("name", "description", "policy", "is_default")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    IS_DEFAULT_FIELD_NUMBER: _ClassVar[int]
    name: str
    description: str
    policy: _policy_pb2.Policy
    is_default: bool
    def __init__(self, name: _Optional[str] = ..., description: _Optional[str] = ..., policy: _Optional[_Union[_policy_pb2.Policy, _Mapping]] = ..., is_default: _Optional[bool] = ...) -> None: ...
