from rlctl.v1 import tensor_pb2 as _tensor_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ComputeValuesRequest(_message.Message):
    __slots__ = ("request_id", "epoch", "sequences")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    epoch: int
    sequences: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.TokenSequence]
    def __init__(self, request_id: _Optional[str] = ..., epoch: _Optional[int] = ..., sequences: _Optional[_Iterable[_Union[_tensor_pb2.TokenSequence, _Mapping]]] = ...) -> None: ...

class ComputeValuesResponse(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.TokenFloats]
    def __init__(self, values: _Optional[_Iterable[_Union[_tensor_pb2.TokenFloats, _Mapping]]] = ...) -> None: ...

class TrainHeader(_message.Message):
    __slots__ = ("epoch", "step", "minibatch", "num_sequences")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    MINIBATCH_FIELD_NUMBER: _ClassVar[int]
    NUM_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    step: int
    minibatch: int
    num_sequences: int
    def __init__(self, epoch: _Optional[int] = ..., step: _Optional[int] = ..., minibatch: _Optional[int] = ..., num_sequences: _Optional[int] = ...) -> None: ...

class TrainSequence(_message.Message):
    __slots__ = ("tokens", "mask", "old_values", "returns")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    MASK_FIELD_NUMBER: _ClassVar[int]
    OLD_VALUES_FIELD_NUMBER: _ClassVar[int]
    RETURNS_FIELD_NUMBER: _ClassVar[int]
    tokens: _tensor_pb2.TokenSequence
    mask: _containers.RepeatedScalarFieldContainer[int]
    old_values: _containers.RepeatedScalarFieldContainer[float]
    returns: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, tokens: _Optional[_Union[_tensor_pb2.TokenSequence, _Mapping]] = ..., mask: _Optional[_Iterable[int]] = ..., old_values: _Optional[_Iterable[float]] = ..., returns: _Optional[_Iterable[float]] = ...) -> None: ...

class TrainPart(_message.Message):
    __slots__ = ("sequences",)
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    sequences: _containers.RepeatedCompositeFieldContainer[TrainSequence]
    def __init__(self, sequences: _Optional[_Iterable[_Union[TrainSequence, _Mapping]]] = ...) -> None: ...

class TrainRequest(_message.Message):
    __slots__ = ("header", "sequences")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    header: TrainHeader
    sequences: TrainPart
    def __init__(self, header: _Optional[_Union[TrainHeader, _Mapping]] = ..., sequences: _Optional[_Union[TrainPart, _Mapping]] = ...) -> None: ...

class TrainResponse(_message.Message):
    __slots__ = ("metrics",)
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    METRICS_FIELD_NUMBER: _ClassVar[int]
    metrics: _containers.ScalarMap[str, float]
    def __init__(self, metrics: _Optional[_Mapping[str, float]] = ...) -> None: ...

class SaveCheckpointRequest(_message.Message):
    __slots__ = ("epoch", "tag", "keep")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    tag: str
    keep: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, epoch: _Optional[int] = ..., tag: _Optional[str] = ..., keep: _Optional[_Iterable[str]] = ...) -> None: ...

class SaveCheckpointResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LoadCheckpointRequest(_message.Message):
    __slots__ = ("epoch", "tag")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    tag: str
    def __init__(self, epoch: _Optional[int] = ..., tag: _Optional[str] = ...) -> None: ...

class LoadCheckpointResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
