from rlctl.v1 import generation_pb2 as _generation_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GroupId(_message.Message):
    __slots__ = ("run", "epoch", "prompt", "attempt")
    RUN_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    run: str
    epoch: int
    prompt: int
    attempt: int
    def __init__(self, run: _Optional[str] = ..., epoch: _Optional[int] = ..., prompt: _Optional[int] = ..., attempt: _Optional[int] = ...) -> None: ...

class PromptTask(_message.Message):
    __slots__ = ("id", "prompt_ids", "prompt", "label", "metadata_json", "sampling", "needs_reference", "step")
    ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_IDS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    METADATA_JSON_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    NEEDS_REFERENCE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    id: GroupId
    prompt_ids: _containers.RepeatedScalarFieldContainer[int]
    prompt: str
    label: str
    metadata_json: str
    sampling: _generation_pb2.SamplingParams
    needs_reference: bool
    step: int
    def __init__(self, id: _Optional[_Union[GroupId, _Mapping]] = ..., prompt_ids: _Optional[_Iterable[int]] = ..., prompt: _Optional[str] = ..., label: _Optional[str] = ..., metadata_json: _Optional[str] = ..., sampling: _Optional[_Union[_generation_pb2.SamplingParams, _Mapping]] = ..., needs_reference: _Optional[bool] = ..., step: _Optional[int] = ...) -> None: ...

class RolloutSample(_message.Message):
    __slots__ = ("sample", "reward", "reward_error", "reward_components", "extra_logs", "reference_logprobs")
    class RewardComponentsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class ExtraLogsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    SAMPLE_FIELD_NUMBER: _ClassVar[int]
    REWARD_FIELD_NUMBER: _ClassVar[int]
    REWARD_ERROR_FIELD_NUMBER: _ClassVar[int]
    REWARD_COMPONENTS_FIELD_NUMBER: _ClassVar[int]
    EXTRA_LOGS_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    sample: _generation_pb2.Sample
    reward: float
    reward_error: str
    reward_components: _containers.ScalarMap[str, float]
    extra_logs: _containers.ScalarMap[str, float]
    reference_logprobs: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, sample: _Optional[_Union[_generation_pb2.Sample, _Mapping]] = ..., reward: _Optional[float] = ..., reward_error: _Optional[str] = ..., reward_components: _Optional[_Mapping[str, float]] = ..., extra_logs: _Optional[_Mapping[str, float]] = ..., reference_logprobs: _Optional[_Iterable[float]] = ...) -> None: ...

class RolloutGroup(_message.Message):
    __slots__ = ("task", "samples", "error", "worker", "started_unix_s", "generate_seconds", "score_seconds")
    TASK_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    STARTED_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    GENERATE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SCORE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    task: PromptTask
    samples: _containers.RepeatedCompositeFieldContainer[RolloutSample]
    error: str
    worker: str
    started_unix_s: float
    generate_seconds: float
    score_seconds: float
    def __init__(self, task: _Optional[_Union[PromptTask, _Mapping]] = ..., samples: _Optional[_Iterable[_Union[RolloutSample, _Mapping]]] = ..., error: _Optional[str] = ..., worker: _Optional[str] = ..., started_unix_s: _Optional[float] = ..., generate_seconds: _Optional[float] = ..., score_seconds: _Optional[float] = ...) -> None: ...
