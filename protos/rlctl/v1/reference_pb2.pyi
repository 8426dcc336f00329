from rlctl.v1 import tensor_pb2 as _tensor_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ComputeLogprobsRequest(_message.Message):
    __slots__ = ("request_id", "sequences", "temperature")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    sequences: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.TokenSequence]
    temperature: float
    def __init__(self, request_id: _Optional[str] = ..., sequences: _Optional[_Iterable[_Union[_tensor_pb2.TokenSequence, _Mapping]]] = ..., temperature: _Optional[float] = ...) -> None: ...

class ComputeLogprobsResponse(_message.Message):
    __slots__ = ("logprobs",)
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    logprobs: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.TokenFloats]
    def __init__(self, logprobs: _Optional[_Iterable[_Union[_tensor_pb2.TokenFloats, _Mapping]]] = ...) -> None: ...
