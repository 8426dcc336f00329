from __future__ import annotations

import inspect
import logging

import grpc
import grpc.aio
import pytest
from google.rpc import error_details_pb2, status_pb2

from rlctl.clients.reward import RewardClient
from rlctl.core import errors
from rlctl.core.errors import InternalError, InvalidArgumentError, RlctlError
from rlctl.rpc.errors import CLASSES, code_of, from_status, to_status
from rlctl.v1.reward_pb2_grpc import RewardServiceStub
from support.scoring import LengthService, items

pytestmark = pytest.mark.anyio

OURS = [cls for cls in vars(errors).values() if inspect.isclass(cls) and issubclass(cls, RlctlError)]


@pytest.mark.parametrize("cls", [cls for cls in OURS if cls is not RlctlError], ids=lambda cls: cls.__name__)
def test_every_error_comes_back_as_itself(cls: type[RlctlError]) -> None:
    status = to_status(cls("prompt is empty; send a text", reason="EMPTY_PROMPT", field="text", limit=3))
    back = from_status(status.code, status.message, status.trailers, method="S/M", address="a:1")
    assert type(back) is cls
    assert (back.message, back.reason) == ("prompt is empty; send a text", "EMPTY_PROMPT")
    assert back.metadata == {"field": "text", "limit": "3"}


def test_every_failing_status_code_has_a_class() -> None:
    assert set(CLASSES) == set(grpc.StatusCode) - {grpc.StatusCode.OK}


def test_codes_are_those_of_the_table() -> None:
    assert code_of(errors.ConfigError("x")) is grpc.StatusCode.INVALID_ARGUMENT
    assert code_of(errors.FencedError("x")) is grpc.StatusCode.FAILED_PRECONDITION
    assert code_of(errors.DataLossError("x")) is grpc.StatusCode.DATA_LOSS


def test_details_are_a_standard_error_info() -> None:
    status = to_status(InvalidArgumentError("bad", field="sampling.top_p"))
    assert [key for key, _ in status.trailers] == ["grpc-status-details-bin"]
    details = status_pb2.Status.FromString(status.trailers[0][1])
    info = error_details_pb2.ErrorInfo()
    assert details.details[0].Unpack(info)
    assert (details.code, details.message) == (3, "bad")
    assert (info.domain, info.reason) == ("rlctl", "INVALID_ARGUMENT")
    assert dict(info.metadata) == {"error": "InvalidArgumentError", "field": "sampling.top_p"}


def test_metadata_with_awkward_names_comes_back() -> None:
    error = InvalidArgumentError("bad")
    error.metadata = {"message": "m", "error": "e", "reason": "r"}
    status = to_status(error)
    back = from_status(status.code, status.message, status.trailers, method="S/M", address="a:1")
    assert type(back) is InvalidArgumentError
    assert back.metadata == {"message": "m", "reason": "r"}


@pytest.mark.parametrize(
    "code, message, words",
    [
        (grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded", "S/M: reward at a:1 did not answer within 3 s"),
        (grpc.StatusCode.UNAVAILABLE, "connection refused", "S/M: cannot reach reward at a:1 (connection refused)"),
        (grpc.StatusCode.UNIMPLEMENTED, "Method not found!", "reward at a:1 does not offer S/M"),
        (
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "SERVER: Received message larger than max (2097152 vs. 1048576)",
            "S/M: a message takes 2 MiB; the limit is 1 MiB.",
        ),
    ],
)
def test_statuses_of_grpc_itself_are_told_in_words(code: grpc.StatusCode, message: str, words: str) -> None:
    error = from_status(code, message, (), method="S/M", address="reward at a:1", timeout_s=3)
    assert type(error) is CLASSES[code]
    assert error.message.startswith(words)


def test_garbage_in_the_details_is_no_error_of_its_own() -> None:
    trailers = (("grpc-status-details-bin", b"\xff\xff\xff"),)
    error = from_status(grpc.StatusCode.NOT_FOUND, "no such tag", trailers, method="S/M", address="a:1")
    assert type(error) is errors.NotFoundError


async def test_a_servicer_error_reaches_the_caller_whole(serve, connect) -> None:
    service = await serve(LengthService())
    client = RewardClient(connect(service.address))
    with pytest.raises(InvalidArgumentError) as caught:
        await client.score(items("raise InvalidArgumentError"))
    assert caught.value.message == "the label is missing; give one"
    assert caught.value.metadata == {"field": "items[0].label"}


async def test_other_clients_see_code_message_and_details(serve) -> None:
    service = await serve(LengthService())
    async with grpc.aio.insecure_channel(service.address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await RewardServiceStub(channel).Score(items("raise FencedError"))
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert caught.value.details() == "the label is missing; give one"
    assert "grpc-status-details-bin" in dict(caught.value.trailing_metadata())


async def test_a_defect_shows_its_trace_in_the_log_only(
    serve, connect, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = await serve(LengthService())
    client = RewardClient(connect(service.address))
    monkeypatch.setattr(logging.getLogger("rlctl"), "propagate", True)
    with caplog.at_level(logging.ERROR, "rlctl.rpc"), pytest.raises(InternalError) as caught:
        await client.score(items("crash"))
    assert "secret detail" not in caught.value.message
    assert "ZeroDivisionError" in caught.value.message
    assert "secret detail" in caplog.text
    assert "RewardService/Score" in caplog.text
    assert (await client.score(items("fine"))).scores[0].reward == 3


@pytest.mark.parametrize("letter", ["x", "é", "数"])
async def test_a_very_long_message_still_arrives(serve, connect, letter: str) -> None:
    class Long(LengthService):
        pass

    hosted = Long()

    async def fail(what: str) -> None:
        raise InvalidArgumentError(letter * 100_000, field=letter * 100_000)

    hosted.servicer._do = fail  # type: ignore[method-assign]
    service = await serve(hosted)
    with pytest.raises(InvalidArgumentError) as caught:
        await RewardClient(connect(service.address)).score(items("x"))
    assert caught.value.message.startswith(letter * 400)
    assert caught.value.message.endswith("...")
