"""Tensor messages to numpy arrays and back, checked.

numpy has no bfloat16: such a tensor is an array of uint16 with the same bits; `bfloat16_to_float32` and
`float32_to_bfloat16` convert.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlctl.core.errors import InvalidArgumentError
from rlctl.v1 import tensor_pb2 as pb

MAX_RANK = 4

_NUMPY: dict[pb.DType, np.dtype[Any]] = {
    pb.D_TYPE_FLOAT32: np.dtype("<f4"),
    pb.D_TYPE_FLOAT16: np.dtype("<f2"),
    pb.D_TYPE_BFLOAT16: np.dtype("<u2"),
    pb.D_TYPE_INT64: np.dtype("<i8"),
    pb.D_TYPE_INT32: np.dtype("<i4"),
    pb.D_TYPE_UINT8: np.dtype("u1"),
    pb.D_TYPE_BOOL: np.dtype("?"),
}
_MESSAGE = {dtype: number for number, dtype in _NUMPY.items()}


def encode(array: NDArray[Any]) -> pb.Tensor:
    """An array as a message; uint16 stands for bfloat16 bits.

    Raises InvalidArgumentError for a type that has no message form, or more than four dimensions.
    """
    dtype = array.dtype.newbyteorder("<")
    number = _MESSAGE.get(dtype)
    if number is None:
        raise InvalidArgumentError(
            f"arrays of {array.dtype} cannot be sent; convert to float32 or int64", field="dtype"
        )
    if array.ndim > MAX_RANK:
        raise InvalidArgumentError(f"{array.ndim} dimensions; at most {MAX_RANK} can be sent", field="shape")
    data = np.ascontiguousarray(array, dtype=dtype).tobytes()
    return pb.Tensor(dtype=number, shape=array.shape, data=data)


def decode(tensor: pb.Tensor, field: str = "tensor") -> NDArray[Any]:
    """A message as a read-only array over its bytes (uint16 for bfloat16).

    Raises InvalidArgumentError, naming `field`, when dtype, shape and bytes do not belong together.
    """
    dtype = _NUMPY.get(tensor.dtype)
    if dtype is None:
        raise InvalidArgumentError(f"{field}.dtype: {tensor.dtype} is no known type", field=f"{field}.dtype")
    shape = tuple(tensor.shape)
    if len(shape) > MAX_RANK:
        raise InvalidArgumentError(
            f"{field}.shape: {len(shape)} dimensions; at most {MAX_RANK} are taken", field=f"{field}.shape"
        )
    if any(size < 0 for size in shape):
        raise InvalidArgumentError(f"{field}.shape: {list(shape)} has a negative dimension", field=f"{field}.shape")
    expected = math.prod(shape) * dtype.itemsize
    if len(tensor.data) != expected:
        raise InvalidArgumentError(
            f"{field}.data: {len(tensor.data)} bytes; shape {list(shape)} needs {expected}", field=f"{field}.data"
        )
    if tensor.dtype == pb.D_TYPE_BOOL and any(byte > 1 for byte in set(tensor.data)):
        raise InvalidArgumentError(f"{field}.data: a bool is 0 or 1", field=f"{field}.data")
    return np.frombuffer(tensor.data, dtype=dtype).reshape(shape)


def bfloat16_to_float32(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Exact."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def float32_to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Rounds to nearest, ties to even; NaN stays NaN."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = ((bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)
