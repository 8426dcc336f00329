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

class ComputeDistributionsRequest(_message.Message):
    __slots__ = ("request_id", "sequences", "temperature", "top_k", "dtype", "tokenizer_digest")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_DIGEST_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    sequences: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.TokenSequence]
    temperature: float
    top_k: int
    dtype: _tensor_pb2.DType
    tokenizer_digest: str
    def __init__(self, request_id: _Optional[str] = ..., sequences: _Optional[_Iterable[_Union[_tensor_pb2.TokenSequence, _Mapping]]] = ..., temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., dtype: _Optional[_Union[_tensor_pb2.DType, str]] = ..., tokenizer_digest: _Optional[str] = ...) -> None: ...

class ComputeDistributionsResponse(_message.Message):
    __slots__ = ("distributions",)
    DISTRIBUTIONS_FIELD_NUMBER: _ClassVar[int]
    distributions: _containers.RepeatedCompositeFieldContainer[TokenDistributions]
    def __init__(self, distributions: _Optional[_Iterable[_Union[TokenDistributions, _Mapping]]] = ...) -> None: ...

class TokenDistributions(_message.Message):
    __slots__ = ("token_ids", "logprobs", "tail_logmass")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TAIL_LOGMASS_FIELD_NUMBER: _ClassVar[int]
    token_ids: _tensor_pb2.Tensor
    logprobs: _tensor_pb2.Tensor
    tail_logmass: _tensor_pb2.Tensor
    def __init__(self, token_ids: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., logprobs: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., tail_logmass: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ...) -> None: ...

class GetReferenceInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetReferenceInfoResponse(_message.Message):
    __slots__ = ("model", "dtype", "vocab_size", "max_length", "tokenizer_digest", "max_message_bytes")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_LENGTH_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_DIGEST_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    model: str
    dtype: str
    vocab_size: int
    max_length: int
    tokenizer_digest: str
    max_message_bytes: int
    def __init__(self, model: _Optional[str] = ..., dtype: _Optional[str] = ..., vocab_size: _Optional[int] = ..., max_length: _Optional[int] = ..., tokenizer_digest: _Optional[str] = ..., max_message_bytes: _Optional[int] = ...) -> None: ...
