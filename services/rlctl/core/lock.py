"""One writer of a file at a time, on this machine and wherever the file system locks for several."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rlctl.core.errors import ConfigError, FailedPreconditionError


@contextmanager
def only_writer(path: Path, mend: str) -> Iterator[None]:
    """Nobody else is in this context for the same file, by whatever name; the lock goes with the process.

    It lies beside the file (`NAME.lock`), in a folder that is made where there is none, and holds our process id.
    Raises FailedPreconditionError, which names the other process and the mend, at once, and ConfigError where no file
    can be written.
    """
    if path.is_dir():
        raise ConfigError(f"{path} is a folder: name a file")
    lock = path.resolve()
    lock = lock.with_name(lock.name + ".lock")
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        descriptor = _take(lock, path, mend)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written ({lock}: {error.strerror}): name another file") from error
    try:
        yield
    finally:
        # Removed while it is held: who opened it before sees that it is gone, and makes a new one.
        lock.unlink(missing_ok=True)
        os.close(descriptor)


def _take(lock: Path, path: Path, mend: str) -> int:
    while True:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _still_there(lock, descriptor):
                os.ftruncate(descriptor, 0)
                os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode())
                return descriptor
        except BlockingIOError:
            who = os.read(descriptor, 256).decode("utf-8", "replace") or "another process"
            os.close(descriptor)
            raise FailedPreconditionError(f"{path} is being written by {who}: {mend}", reason="FILE_IN_USE") from None
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _still_there(lock: Path, descriptor: int) -> bool:
    """Whether the name still belongs to what was locked."""
    try:
        return os.path.samestat(lock.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
