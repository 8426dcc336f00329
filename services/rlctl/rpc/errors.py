"""The one table of errors on the wire, and its translation both ways.

A service raises a `rlctl.core.errors` class; on the wire it is a status code, the message, and a
`google.rpc.ErrorInfo` of domain "rlctl" (reason, metadata, and the class's name under `error`) in the
standard `grpc-status-details-bin` trailer; the client raises the same class again. A status that did not
come from us (a broken connection, another server) becomes the class of its code.
"""

from __future__ import annotations

import logging
import re
from typing import NamedTuple

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from rlctl.core import errors
from rlctl.core.errors import RlctlError

DOMAIN = "rlctl"
DETAILS_KEY = "grpc-status-details-bin"

#: Class of ours to status code. A class not listed takes the code of its nearest base.
CODES: dict[type[RlctlError], grpc.StatusCode] = {
    RlctlError: grpc.StatusCode.INTERNAL,
    errors.InvalidArgumentError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.NotFoundError: grpc.StatusCode.NOT_FOUND,
    errors.FencedError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.FailedPreconditionError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.ResourceExhaustedError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.UnavailableError: grpc.StatusCode.UNAVAILABLE,
    errors.DeadlineError: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.AuthenticationError: grpc.StatusCode.UNAUTHENTICATED,
    errors.AccessDeniedError: grpc.StatusCode.PERMISSION_DENIED,
    errors.DataLossError: grpc.StatusCode.DATA_LOSS,
    errors.InternalError: grpc.StatusCode.INTERNAL,
}

#: Status code to class of ours, for a status without our details.
CLASSES: dict[grpc.StatusCode, type[RlctlError]] = {
    grpc.StatusCode.CANCELLED: errors.UnavailableError,
    grpc.StatusCode.UNKNOWN: errors.InternalError,
    grpc.StatusCode.INVALID_ARGUMENT: errors.InvalidArgumentError,
    grpc.StatusCode.DEADLINE_EXCEEDED: errors.DeadlineError,
    grpc.StatusCode.NOT_FOUND: errors.NotFoundError,
    grpc.StatusCode.ALREADY_EXISTS: errors.FailedPreconditionError,
    grpc.StatusCode.PERMISSION_DENIED: errors.AccessDeniedError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: errors.ResourceExhaustedError,
    grpc.StatusCode.FAILED_PRECONDITION: errors.FailedPreconditionError,
    grpc.StatusCode.ABORTED: errors.FailedPreconditionError,
    grpc.StatusCode.OUT_OF_RANGE: errors.InvalidArgumentError,
    grpc.StatusCode.UNIMPLEMENTED: errors.FailedPreconditionError,
    grpc.StatusCode.INTERNAL: errors.InternalError,
    grpc.StatusCode.UNAVAILABLE: errors.UnavailableError,
    grpc.StatusCode.DATA_LOSS: errors.DataLossError,
    grpc.StatusCode.UNAUTHENTICATED: errors.AuthenticationError,
}

_BY_NAME: dict[str, type[RlctlError]] = {
    cls.__name__: cls
    for cls in vars(errors).values()
    if isinstance(cls, type) and issubclass(cls, RlctlError) and cls is not RlctlError
}

#: Trailers must stay below gRPC's default of 8 KiB, also when every byte of the message is escaped.
_MESSAGE_BYTES = 1500
_METADATA_BYTES = 1000

_log = logging.getLogger("rlctl.rpc")


class Status(NamedTuple):
    """What goes on the wire for an error."""

    code: grpc.StatusCode
    message: str
    trailers: tuple[tuple[str, bytes], ...]


def code_of(error: RlctlError) -> grpc.StatusCode:
    """The status code of an error of ours."""
    return next(CODES[cls] for cls in type(error).__mro__ if cls in CODES)


def to_status(error: BaseException, method: str = "") -> Status:
    """The status for whatever a service raised in `method`.

    An error that is not ours is a defect: the caller learns its type only, and its trace goes to the log.
    """
    if not isinstance(error, RlctlError):
        _log.error("%s: unexpected %s", method, type(error).__name__, exc_info=error)
        error = errors.InternalError(f"unexpected {type(error).__name__}; the log of the service has its trace")
    code = code_of(error)
    message = _clip(error.message, _MESSAGE_BYTES)
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN)
    room = _METADATA_BYTES
    metadata = {"error": type(error).__name__, **{k: v for k, v in error.metadata.items() if k != "error"}}
    for key, value in metadata.items():
        value = _clip(value, room)
        room -= len(key) + len(value.encode())
        if room < 0:
            break
        info.metadata[key] = value
    details = status_pb2.Status(code=code.value[0], message=message)
    details.details.add().Pack(info)
    return Status(code, message, ((DETAILS_KEY, details.SerializeToString()),))


def from_status(
    code: grpc.StatusCode, message: str, trailers: object, *, method: str, address: str, timeout_s: float | None = None
) -> RlctlError:
    """The error of ours for a status that a call ended with.

    `method` is `Service/Method`; `trailers` is the trailing metadata. A status of our services keeps its class,
    message, reason and metadata; any other is told in words with method and address.
    """
    info = _error_info(trailers)
    if info is not None and info.domain == DOMAIN:
        metadata = dict(info.metadata)
        own = _BY_NAME.get(metadata.pop("error", ""))
        cls = own or CLASSES.get(code, errors.InternalError)
        return _make(cls, message, info.reason, metadata)
    cls = CLASSES.get(code, errors.InternalError)
    text, reason = _words(code, message, method, address, timeout_s)
    if info is not None:
        return _make(cls, text, info.reason or reason, dict(info.metadata))
    return _make(cls, text, reason, {})


def from_rpc_error(
    error: grpc.aio.AioRpcError, *, method: str, address: str, timeout_s: float | None = None
) -> RlctlError:
    """The error of ours for one that grpc.aio raised."""
    return from_status(
        error.code(),
        error.details() or "",
        error.trailing_metadata() or (),
        method=method,
        address=address,
        timeout_s=timeout_s,
    )


def mebibytes(size: int) -> str:
    """A size in words: `64 MiB`, `0.5 MiB`."""
    return f"{size / 2**20:.4g} MiB"


def _words(
    code: grpc.StatusCode, message: str, method: str, address: str, timeout_s: float | None
) -> tuple[str, str | None]:
    """Message and reason for a status that gRPC itself made."""
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        within = f" within {timeout_s:g} s" if timeout_s is not None else " in time"
        return f"{method}: {address} did not answer{within}", None
    if code is grpc.StatusCode.UNAVAILABLE:
        return f"{method}: cannot reach {address} ({message})", None
    if code is grpc.StatusCode.CANCELLED:
        return f"{method}: {address} cancelled the call ({message or 'no reason given'})", "CANCELLED"
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return f"{address} does not offer {method}; is it the address of another service?", "UNIMPLEMENTED"
    size = re.search(r"(Sent|Received) message larger than max \((\d+) vs\. (\d+)\)", message)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and size:
        return too_large(f"{method}: a message", int(size[2]), int(size[3])), "MESSAGE_TOO_LARGE"
    return f"{method} at {address}: {message or code.name}", None


def too_large(what: str, size: int, limit: int) -> str:
    """Says that a message is over the limit, and what to do."""
    return (
        f"{what} takes {mebibytes(size)}; the limit is {mebibytes(limit)}. "
        "Send less at once, or raise max_message_mb on both ends."
    )


def _make(cls: type[RlctlError], message: str, reason: str | None, metadata: dict[str, str]) -> RlctlError:
    error = cls(message, reason=reason or None)
    error.metadata = metadata
    return error


def _error_info(trailers: object) -> error_details_pb2.ErrorInfo | None:
    for key, value in trailers:  # type: ignore[attr-defined]
        if key != DETAILS_KEY:
            continue
        info = error_details_pb2.ErrorInfo()
        try:
            details = status_pb2.Status.FromString(value)
            if any(detail.Unpack(info) for detail in details.details):
                return info
        except DecodeError:
            return None
    return None


def _clip(text: str, limit: int) -> str:
    data = text.encode("utf-8", "replace")
    if len(data) <= limit:
        return data.decode()
    return data[: max(limit - 3, 0)].decode("utf-8", "ignore") + "..."
