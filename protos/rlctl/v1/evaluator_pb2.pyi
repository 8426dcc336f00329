from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EvaluationState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EVALUATION_STATE_UNSPECIFIED: _ClassVar[EvaluationState]
    EVALUATION_STATE_RUNNING: _ClassVar[EvaluationState]
    EVALUATION_STATE_DONE: _ClassVar[EvaluationState]
    EVALUATION_STATE_STOPPED: _ClassVar[EvaluationState]
    EVALUATION_STATE_FAILED: _ClassVar[EvaluationState]
    EVALUATION_STATE_CANCELLED: _ClassVar[EvaluationState]
EVALUATION_STATE_UNSPECIFIED: EvaluationState
EVALUATION_STATE_RUNNING: EvaluationState
EVALUATION_STATE_DONE: EvaluationState
EVALUATION_STATE_STOPPED: EvaluationState
EVALUATION_STATE_FAILED: EvaluationState
EVALUATION_STATE_CANCELLED: EvaluationState

class StartEvaluationRequest(_message.Message):
    __slots__ = ("request_id", "config_json")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CONFIG_JSON_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    config_json: str
    def __init__(self, request_id: _Optional[str] = ..., config_json: _Optional[str] = ...) -> None: ...

class StartEvaluationResponse(_message.Message):
    __slots__ = ("evaluation_id",)
    EVALUATION_ID_FIELD_NUMBER: _ClassVar[int]
    evaluation_id: str
    def __init__(self, evaluation_id: _Optional[str] = ...) -> None: ...

class WatchEvaluationRequest(_message.Message):
    __slots__ = ("evaluation_id",)
    EVALUATION_ID_FIELD_NUMBER: _ClassVar[int]
    evaluation_id: str
    def __init__(self, evaluation_id: _Optional[str] = ...) -> None: ...

class WatchEvaluationResponse(_message.Message):
    __slots__ = ("state", "records_done", "records_total", "seconds_left", "cost", "message")
    STATE_FIELD_NUMBER: _ClassVar[int]
    RECORDS_DONE_FIELD_NUMBER: _ClassVar[int]
    RECORDS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    SECONDS_LEFT_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    state: EvaluationState
    records_done: int
    records_total: int
    seconds_left: float
    cost: float
    message: str
    def __init__(self, state: _Optional[_Union[EvaluationState, str]] = ..., records_done: _Optional[int] = ..., records_total: _Optional[int] = ..., seconds_left: _Optional[float] = ..., cost: _Optional[float] = ..., message: _Optional[str] = ...) -> None: ...

class GetReportRequest(_message.Message):
    __slots__ = ("evaluation_id",)
    EVALUATION_ID_FIELD_NUMBER: _ClassVar[int]
    evaluation_id: str
    def __init__(self, evaluation_id: _Optional[str] = ...) -> None: ...

class GetReportResponse(_message.Message):
    __slots__ = ("state", "summary_json", "output_dir")
    STATE_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_JSON_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_DIR_FIELD_NUMBER: _ClassVar[int]
    state: EvaluationState
    summary_json: str
    output_dir: str
    def __init__(self, state: _Optional[_Union[EvaluationState, str]] = ..., summary_json: _Optional[str] = ..., output_dir: _Optional[str] = ...) -> None: ...

class CancelEvaluationRequest(_message.Message):
    __slots__ = ("evaluation_id",)
    EVALUATION_ID_FIELD_NUMBER: _ClassVar[int]
    evaluation_id: str
    def __init__(self, evaluation_id: _Optional[str] = ...) -> None: ...

class CancelEvaluationResponse(_message.Message):
    __slots__ = ("state",)
    STATE_FIELD_NUMBER: _ClassVar[int]
    state: EvaluationState
    def __init__(self, state: _Optional[_Union[EvaluationState, str]] = ...) -> None: ...
