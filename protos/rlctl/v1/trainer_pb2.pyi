from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TrainerState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TRAINER_STATE_UNSPECIFIED: _ClassVar[TrainerState]
    TRAINER_STATE_STARTING: _ClassVar[TrainerState]
    TRAINER_STATE_REPLAYING: _ClassVar[TrainerState]
    TRAINER_STATE_RUNNING: _ClassVar[TrainerState]
    TRAINER_STATE_PAUSED: _ClassVar[TrainerState]
    TRAINER_STATE_EVALUATING: _ClassVar[TrainerState]
    TRAINER_STATE_STOPPING: _ClassVar[TrainerState]
    TRAINER_STATE_DONE: _ClassVar[TrainerState]
TRAINER_STATE_UNSPECIFIED: TrainerState
TRAINER_STATE_STARTING: TrainerState
TRAINER_STATE_REPLAYING: TrainerState
TRAINER_STATE_RUNNING: TrainerState
TRAINER_STATE_PAUSED: TrainerState
TRAINER_STATE_EVALUATING: TrainerState
TRAINER_STATE_STOPPING: TrainerState
TRAINER_STATE_DONE: TrainerState

class Ledger(_message.Message):
    __slots__ = ("issued", "trained", "dropped", "pending")
    ISSUED_FIELD_NUMBER: _ClassVar[int]
    TRAINED_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    issued: int
    trained: int
    dropped: int
    pending: int
    def __init__(self, issued: _Optional[int] = ..., trained: _Optional[int] = ..., dropped: _Optional[int] = ..., pending: _Optional[int] = ...) -> None: ...

class GetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatusResponse(_message.Message):
    __slots__ = ("run", "state", "step", "total_steps", "epoch", "policy_version", "ledger", "metrics", "checkpoint_step", "waiting_for")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    RUN_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    TOTAL_STEPS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    LEDGER_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_STEP_FIELD_NUMBER: _ClassVar[int]
    WAITING_FOR_FIELD_NUMBER: _ClassVar[int]
    run: str
    state: TrainerState
    step: int
    total_steps: int
    epoch: int
    policy_version: int
    ledger: Ledger
    metrics: _containers.ScalarMap[str, float]
    checkpoint_step: int
    waiting_for: str
    def __init__(self, run: _Optional[str] = ..., state: _Optional[_Union[TrainerState, str]] = ..., step: _Optional[int] = ..., total_steps: _Optional[int] = ..., epoch: _Optional[int] = ..., policy_version: _Optional[int] = ..., ledger: _Optional[_Union[Ledger, _Mapping]] = ..., metrics: _Optional[_Mapping[str, float]] = ..., checkpoint_step: _Optional[int] = ..., waiting_for: _Optional[str] = ...) -> None: ...

class PauseRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PauseResponse(_message.Message):
    __slots__ = ("step",)
    STEP_FIELD_NUMBER: _ClassVar[int]
    step: int
    def __init__(self, step: _Optional[int] = ...) -> None: ...

class ResumeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ResumeResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CheckpointRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CheckpointResponse(_message.Message):
    __slots__ = ("step", "path")
    STEP_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    step: int
    path: str
    def __init__(self, step: _Optional[int] = ..., path: _Optional[str] = ...) -> None: ...

class StopRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StopResponse(_message.Message):
    __slots__ = ("step",)
    STEP_FIELD_NUMBER: _ClassVar[int]
    step: int
    def __init__(self, step: _Optional[int] = ...) -> None: ...
