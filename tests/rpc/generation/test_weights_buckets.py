"""Buckets, worked by hand."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import xxhash

from rlctl.core.errors import DataLossError, InvalidArgumentError
from rlctl.generation.updates import relative_difference
from rlctl.v1 import weights_pb2 as pb
from rlctl.weights.bucket import Announcement, Bucket, Entry, Packer, check, entry_of, offsets, unpack, verify
from rlctl.weights.messages import from_bucket, from_join, to_bucket


def weights() -> Iterator[tuple[str, torch.Tensor]]:
    yield "a", torch.arange(3, dtype=torch.float32)  # 12 bytes
    yield "b", torch.arange(6, dtype=torch.bfloat16).view(2, 3)  # 12 bytes
    yield "c", torch.full((2, 8), 7.0)  # 64 bytes
    yield "d", torch.tensor(5.0)  # 4 bytes


def packed(capacity: int) -> list[Bucket]:
    buckets = []
    for bucket in Packer(capacity, torch.device("cpu")).pack(weights()):
        buckets.append(Bucket(bucket.announcement, bucket.data.clone()))
    return buckets


def test_entries_begin_on_16_bytes() -> None:
    entries = [Entry("a", torch.float32, (3,)), Entry("b", torch.bfloat16, (2, 3)), Entry("d", torch.float32, ())]
    assert offsets(entries) == ([0, 16, 32], 36)


def test_a_bucket_holds_what_fits_and_a_larger_tensor_travels_alone() -> None:
    names = [[entry.name for entry in bucket.announcement.entries] for bucket in packed(32)]
    assert names == [["a", "b"], ["c"], ["d"]]
    assert [bucket.announcement.num_bytes for bucket in packed(32)] == [28, 64, 4]
    assert [bucket.announcement.index for bucket in packed(32)] == [0, 1, 2]
    assert len(packed(1000)) == 1


def test_bytes_between_entries_are_zero_and_count_in_the_digest() -> None:
    first = packed(32)[0]
    data = first.data.numpy().tobytes()
    assert (
        data
        == torch.arange(3.0).numpy().tobytes()
        + bytes(4)
        + torch.arange(6, dtype=torch.bfloat16).view(torch.int16).numpy().tobytes()
    )
    assert first.announcement.digest == xxhash.xxh3_128_digest(data)


def test_what_was_packed_comes_out_again() -> None:
    for bucket in packed(32):
        for name, tensor in unpack(bucket.announcement, bucket.data):
            expected = dict(weights())[name]
            assert tensor.dtype == expected.dtype
            assert torch.equal(tensor, expected)


def test_a_flipped_bit_is_seen() -> None:
    bucket = packed(32)[1]
    verify(bucket.announcement, bucket.data)
    bucket.data[63] ^= 1
    with pytest.raises(DataLossError) as refused:
        verify(bucket.announcement, bucket.data)
    assert refused.value.reason == "DIGEST_MISMATCH"


def test_an_announcement_that_contradicts_itself_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="its entries fill 12"):
        check(Announcement(0, (Entry("a", torch.float32, (3,)),), 16, bytes(16)))
    with pytest.raises(InvalidArgumentError, match="allowed are float32"):
        entry_of("a", "int8", [1])
    with pytest.raises(InvalidArgumentError, match="shape"):
        entry_of("a", "float32", [-1])
    with pytest.raises(InvalidArgumentError, match="16 bytes"):
        from_bucket(pb.Bucket(digest=b"short"))


def test_announcements_survive_the_wire() -> None:
    announcement = packed(1000)[0].announcement
    assert from_bucket(pb.Bucket.FromString(to_bucket(announcement).SerializeToString())) == announcement


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"backend": "mpi"}, "backend"),
        ({"group": ""}, "group"),
        ({"port": 0}, "host"),
        ({"rank": 0}, "rank"),
        ({"rank": 3}, "rank"),
        ({"timeout_s": float("nan")}, "timeout_s"),
    ],
)
def test_a_bad_invitation_is_told_by_field(change: dict[str, object], field: str) -> None:
    good = {"backend": "gloo", "group": "g", "host": "h", "port": 1, "world_size": 4, "rank": 2, "timeout_s": 1.0}
    assert from_join(pb.JoinGroupRequest(**good), workers=2).rank == 2
    with pytest.raises(InvalidArgumentError) as refused:
        from_join(pb.JoinGroupRequest(**{**good, **change}), workers=2)
    assert refused.value.metadata["field"] == field


def test_the_canary_forgives_rounding_by_the_size_of_a_log_prob() -> None:
    assert relative_difference([-0.5, -16.2], [-0.4, -16.0]) == pytest.approx((0.1 + 0.2 / 16) / 2)
    assert relative_difference([-0.5], [-0.5, -1.0]) == float("inf")
    assert relative_difference([float("nan")], [-0.5]) == float("inf")
