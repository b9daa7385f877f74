from metronome.scheduler.v1 import scheduler_pb2 as _scheduler_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PlanRecord(_message.Message):
    __slots__ = ("request", "response")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    request: _scheduler_pb2.PlanRequest
    response: _scheduler_pb2.PlanResponse
    def __init__(self, request: _Optional[_Union[_scheduler_pb2.PlanRequest, _Mapping]] = ..., response: _Optional[_Union[_scheduler_pb2.PlanResponse, _Mapping]] = ...) -> None: ...
