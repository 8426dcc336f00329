"""Every error that rlctl raises on purpose.

RlctlError
├── InvalidArgumentError      the caller's value is wrong; names the field and the mend
│   └── ConfigError           a setting is wrong; names the setting, and file and line where known
├── NotFoundError             a named thing does not exist
├── FencedError               a newer trainer owns the run
├── FailedPreconditionError   right request, wrong state (for example: weights not loaded yet)
│   └── FutileError           a run cannot go on until somebody mends what it depends on
├── ResourceExhaustedError    a stated limit is passed (message size, memory, queue length)
├── UnavailableError          the other side cannot be reached, or is not serving; retry may help
├── DeadlineError             it took too long; says on whom it waited
├── AuthenticationError       no valid token or certificate
├── AccessDeniedError          known, but not allowed
├── DataLossError             bytes are not what they were said to be (digest, manifest)
└── InternalError             our own defect
`rlctl.rpc.errors` maps them to gRPC status codes and back, in one table.
"""

from __future__ import annotations


class RlctlError(Exception):
    """Base of all.

    `reason` is an upper-snake-case word for programs; `metadata` adds detail (`field`, `limit`, ...).
    """

    reason = "UNKNOWN"
    #: What a process that ends with it exits with; 2 and 3: started again as it is, it would end so again.
    exit_code = 1

    def __init__(self, message: str, *, reason: str | None = None, **metadata: object) -> None:
        super().__init__(message)
        self.message = message
        if reason is not None:
            self.reason = reason
        self.metadata = {key: str(value) for key, value in metadata.items()}


class InvalidArgumentError(RlctlError):
    reason = "INVALID_ARGUMENT"


class ConfigError(InvalidArgumentError):
    exit_code = 2
    reason = "INVALID_CONFIG"


class NotFoundError(RlctlError):
    reason = "NOT_FOUND"


class FencedError(RlctlError):
    reason = "FENCED"


class FailedPreconditionError(RlctlError):
    reason = "FAILED_PRECONDITION"


class FutileError(FailedPreconditionError):
    exit_code = 3
    reason = "FUTILE"


class ResourceExhaustedError(RlctlError):
    reason = "RESOURCE_EXHAUSTED"


class UnavailableError(RlctlError):
    reason = "UNAVAILABLE"


class DeadlineError(RlctlError):
    reason = "DEADLINE_EXCEEDED"


class AuthenticationError(RlctlError):
    reason = "UNAUTHENTICATED"


class AccessDeniedError(RlctlError):
    reason = "PERMISSION_DENIED"


class DataLossError(RlctlError):
    reason = "DATA_LOSS"


class InternalError(RlctlError):
    reason = "INTERNAL"
