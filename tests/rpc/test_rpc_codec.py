from __future__ import annotations

import numpy as np
import pytest

from rlctl.core.errors import InvalidArgumentError
from rlctl.rpc.codec import bfloat16_to_float32, decode, encode, float32_to_bfloat16
from rlctl.v1 import tensor_pb2 as pb


@pytest.mark.parametrize("dtype", ["f4", "f2", "u2", "i8", "i4", "u1", "?"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3), (2, 0, 3), (1, 2, 3, 4)])
def test_arrays_come_back_bit_for_bit(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    back = decode(pb.Tensor.FromString(encode(array).SerializeToString()))
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array)


def test_bytes_are_little_endian_and_row_major() -> None:
    column_major = np.asfortranarray(np.array([[1, 2], [3, 4]], dtype=">i4"))
    message = encode(column_major)
    assert message.data == bytes([1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0])
    assert (message.dtype, list(message.shape)) == (pb.D_TYPE_INT32, [2, 2])


def test_bfloat16_travels_as_its_bits() -> None:
    values = np.array([1.0, -2.5, 0.0, np.inf, 1.00390625, 1.01171875], dtype=np.float32)
    bits = float32_to_bfloat16(values)
    # 1.00390625 lies halfway between 1 and 1.0078125 and 1.01171875 between 1.0078125 and 1.015625: ties go to even.
    assert [hex(bit) for bit in bits] == ["0x3f80", "0xc020", "0x0", "0x7f80", "0x3f80", "0x3f82"]
    message = encode(bits)
    assert message.dtype == pb.D_TYPE_BFLOAT16
    np.testing.assert_array_equal(
        bfloat16_to_float32(decode(message)), np.array([1.0, -2.5, 0.0, np.inf, 1.0, 1.015625], dtype=np.float32)
    )
    assert np.isnan(bfloat16_to_float32(float32_to_bfloat16(np.array([np.nan], dtype=np.float32))))[0]


@pytest.mark.parametrize(
    "message, field",
    [
        (pb.Tensor(shape=[1], data=b"\0"), "t.dtype"),
        (pb.Tensor(dtype=99, shape=[1], data=b"\0"), "t.dtype"),  # type: ignore[arg-type]
        (pb.Tensor(dtype=pb.D_TYPE_UINT8, shape=[1] * 5, data=b"\0"), "t.shape"),
        (pb.Tensor(dtype=pb.D_TYPE_UINT8, shape=[-1, -1], data=b"\0"), "t.shape"),
        (pb.Tensor(dtype=pb.D_TYPE_FLOAT32, shape=[2], data=b"\0" * 7), "t.data"),
        (pb.Tensor(dtype=pb.D_TYPE_FLOAT32, shape=[], data=b""), "t.data"),
        (pb.Tensor(dtype=pb.D_TYPE_UINT8, shape=[2**40, 2**40], data=b"\0"), "t.data"),
        (pb.Tensor(dtype=pb.D_TYPE_BOOL, shape=[2], data=b"\0\2"), "t.data"),
    ],
)
def test_a_tensor_that_does_not_fit_itself_is_refused(message: pb.Tensor, field: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        decode(message, "t")
    assert caught.value.metadata["field"] == field
    assert caught.value.message.startswith(field)


def test_arrays_without_a_message_form_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="float64"):
        encode(np.zeros(2))
    with pytest.raises(InvalidArgumentError, match="5 dimensions"):
        encode(np.zeros((1, 1, 1, 1, 1), dtype=np.float32))
