from rlctl.v1 import rollout_pb2 as _rollout_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class JournalRecord(_message.Message):
    __slots__ = ("issued", "settled")
    ISSUED_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    issued: IssuedGroups
    settled: SettledStep
    def __init__(self, issued: _Optional[_Union[IssuedGroups, _Mapping]] = ..., settled: _Optional[_Union[SettledStep, _Mapping]] = ...) -> None: ...

class IssuedGroups(_message.Message):
    __slots__ = ("step", "tasks")
    STEP_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    step: int
    tasks: _containers.RepeatedCompositeFieldContainer[_rollout_pb2.PromptTask]
    def __init__(self, step: _Optional[int] = ..., tasks: _Optional[_Iterable[_Union[_rollout_pb2.PromptTask, _Mapping]]] = ...) -> None: ...

class SettledStep(_message.Message):
    __slots__ = ("step", "groups", "dropped")
    STEP_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    step: int
    groups: _containers.RepeatedScalarFieldContainer[bytes]
    dropped: _containers.RepeatedCompositeFieldContainer[DroppedGroup]
    def __init__(self, step: _Optional[int] = ..., groups: _Optional[_Iterable[bytes]] = ..., dropped: _Optional[_Iterable[_Union[DroppedGroup, _Mapping]]] = ...) -> None: ...

class DroppedGroup(_message.Message):
    __slots__ = ("id", "reason", "message")
    ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    id: _rollout_pb2.GroupId
    reason: str
    message: str
    def __init__(self, id: _Optional[_Union[_rollout_pb2.GroupId, _Mapping]] = ..., reason: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class TrainOrder(_message.Message):
    __slots__ = ("settled", "beta")
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    BETA_FIELD_NUMBER: _ClassVar[int]
    settled: SettledStep
    beta: float
    def __init__(self, settled: _Optional[_Union[SettledStep, _Mapping]] = ..., beta: _Optional[float] = ...) -> None: ...
