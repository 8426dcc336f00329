from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class JoinGroupRequest(_message.Message):
    __slots__ = ("epoch", "group", "backend", "host", "port", "world_size", "rank", "timeout_s")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    group: str
    backend: str
    host: str
    port: int
    world_size: int
    rank: int
    timeout_s: float
    def __init__(self, epoch: _Optional[int] = ..., group: _Optional[str] = ..., backend: _Optional[str] = ..., host: _Optional[str] = ..., port: _Optional[int] = ..., world_size: _Optional[int] = ..., rank: _Optional[int] = ..., timeout_s: _Optional[float] = ...) -> None: ...

class JoinGroupResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WeightEntry(_message.Message):
    __slots__ = ("name", "dtype", "shape")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ...) -> None: ...

class OpenUpdate(_message.Message):
    __slots__ = ("epoch", "group", "policy_version")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    group: str
    policy_version: int
    def __init__(self, epoch: _Optional[int] = ..., group: _Optional[str] = ..., policy_version: _Optional[int] = ...) -> None: ...

class Bucket(_message.Message):
    __slots__ = ("index", "entries", "num_bytes", "digest")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    index: int
    entries: _containers.RepeatedCompositeFieldContainer[WeightEntry]
    num_bytes: int
    digest: bytes
    def __init__(self, index: _Optional[int] = ..., entries: _Optional[_Iterable[_Union[WeightEntry, _Mapping]]] = ..., num_bytes: _Optional[int] = ..., digest: _Optional[bytes] = ...) -> None: ...

class CloseUpdate(_message.Message):
    __slots__ = ("num_buckets",)
    NUM_BUCKETS_FIELD_NUMBER: _ClassVar[int]
    num_buckets: int
    def __init__(self, num_buckets: _Optional[int] = ...) -> None: ...

class UpdateRequest(_message.Message):
    __slots__ = ("open", "bucket", "close")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    open: OpenUpdate
    bucket: Bucket
    close: CloseUpdate
    def __init__(self, open: _Optional[_Union[OpenUpdate, _Mapping]] = ..., bucket: _Optional[_Union[Bucket, _Mapping]] = ..., close: _Optional[_Union[CloseUpdate, _Mapping]] = ...) -> None: ...

class UpdateResponse(_message.Message):
    __slots__ = ("buckets_loaded", "loaded")
    BUCKETS_LOADED_FIELD_NUMBER: _ClassVar[int]
    LOADED_FIELD_NUMBER: _ClassVar[int]
    buckets_loaded: int
    loaded: bool
    def __init__(self, buckets_loaded: _Optional[int] = ..., loaded: _Optional[bool] = ...) -> None: ...

class Canary(_message.Message):
    __slots__ = ("token_ids", "logprobs", "tolerance")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TOLERANCE_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedScalarFieldContainer[float]
    tolerance: float
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[float]] = ..., tolerance: _Optional[float] = ...) -> None: ...

class ActivateRequest(_message.Message):
    __slots__ = ("epoch", "policy_version", "canary")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    CANARY_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    policy_version: int
    canary: Canary
    def __init__(self, epoch: _Optional[int] = ..., policy_version: _Optional[int] = ..., canary: _Optional[_Union[Canary, _Mapping]] = ...) -> None: ...

class ActivateResponse(_message.Message):
    __slots__ = ("canary_difference",)
    CANARY_DIFFERENCE_FIELD_NUMBER: _ClassVar[int]
    canary_difference: float
    def __init__(self, canary_difference: _Optional[float] = ...) -> None: ...
