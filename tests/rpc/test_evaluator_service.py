"""The evaluator service over gRPC: start, watch, report, cancel, restart."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from rlctl.clients.evaluator import EvaluatorClient
from rlctl.core.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from rlctl.evaluator.config import EvaluatorServiceConfig
from rlctl.evaluator.servicer import EvaluatorHosted
from rlctl.evaluator.standin import StandIn
from rlctl.rpc.config import ChannelConfig, ServerConfig
from rlctl.rpc.pool import Pool
from rlctl.rpc.service import RunningService, start
from rlctl.v1 import evaluator_pb2 as pb
from support.pairs import write_pairs


def _settings(tmp_path: Path, url: str, **more: Any) -> str:
    return json.dumps({
        "outputs": str(tmp_path / "outputs"), "gold": str(tmp_path / "gold.jsonl"), "concurrency": 4, "bootstrap": 200,
        "max_samples": 500, "judges": [{"preset": "local", "model": "m", "base_url": url}], **more,
    })  # fmt: skip


async def _service(tmp_path: Path) -> tuple[RunningService, Pool, EvaluatorClient]:
    config = EvaluatorServiceConfig(server=ServerConfig(metrics_listen=None), state_dir=tmp_path / "state")
    service = await start("evaluator", config.server, EvaluatorHosted(config))
    pool = Pool("evaluator", ChannelConfig(addresses=[service.address], timeout_s=20))
    return service, pool, EvaluatorClient(pool)


def test_an_evaluation_from_start_to_report(tmp_path: Path) -> None:
    write_pairs(tmp_path, 30)

    async def run() -> None:
        async with StandIn(latency_s=0.05) as judge:
            service, pool, client = await _service(tmp_path)
            request = pb.StartEvaluationRequest(request_id="r1", config_json=_settings(tmp_path, judge.base_url))
            evaluation = (await client.start_evaluation(request)).evaluation_id
            assert (await client.start_evaluation(request)).evaluation_id == evaluation
            with pytest.raises(FailedPreconditionError, match="still running"):
                await client.get_report(evaluation)
            seen = [progress async for progress in client.watch_evaluation(evaluation)]
            assert seen[0].state == pb.EVALUATION_STATE_RUNNING
            assert (seen[-1].state, seen[-1].records_done) == (pb.EVALUATION_STATE_DONE, 30)
            assert any(0 < progress.records_done < 30 for progress in seen)
            report = await client.get_report(evaluation)
            assert json.loads(report.summary_json)["data_sets"]["set"]["records"] == 30
            assert (Path(report.output_dir) / "evaluation_results.xlsx").exists()
            assert sum(judge.calls.values()) == 30
            await pool.close()
            await service.stop()

    asyncio.run(run())


def test_wrong_requests_say_why(tmp_path: Path) -> None:
    write_pairs(tmp_path, 2)

    async def run() -> None:
        service, pool, client = await _service(tmp_path)
        for text, words in (
            ("{", "not JSON"), ("[]", "must be an object"), ('{"outptus": "x"}', "Did you mean 'outputs'"),
            ('{"dry_run": true}', "dry run"),
        ):  # fmt: skip
            with pytest.raises(InvalidArgumentError, match=words):
                await client.start_evaluation(pb.StartEvaluationRequest(request_id="r", config_json=text))
        with pytest.raises(NotFoundError, match="no evaluation"):
            await client.get_report("nonsense")
        started = await client.start_evaluation(
            pb.StartEvaluationRequest(
                request_id="r", config_json='{"outputs": "/nowhere", "judges": [{"preset": "rules"}]}'
            )
        )
        last = [progress async for progress in client.watch_evaluation(started.evaluation_id)][-1]
        assert last.state == pb.EVALUATION_STATE_FAILED
        assert "there is no folder /nowhere" in last.message
        assert (await client.get_report(started.evaluation_id)).summary_json == ""
        with pytest.raises(InvalidArgumentError, match="other settings"):
            await client.start_evaluation(pb.StartEvaluationRequest(request_id="r", config_json="{}"))
        await pool.close()
        await service.stop()

    asyncio.run(run())


def test_a_cancelled_evaluation_keeps_its_verdicts(tmp_path: Path) -> None:
    write_pairs(tmp_path, 40)

    async def run() -> None:
        async with StandIn(latency_s=0.1) as judge:
            service, pool, client = await _service(tmp_path)
            request = pb.StartEvaluationRequest(request_id="r", config_json=_settings(tmp_path, judge.base_url))
            evaluation = (await client.start_evaluation(request)).evaluation_id
            async for progress in client.watch_evaluation(evaluation):
                if progress.records_done >= 8:
                    break
            cancelled = await client.cancel_evaluation(evaluation)
            assert cancelled.state == pb.EVALUATION_STATE_CANCELLED
            asked = sum(judge.calls.values())
            assert 8 <= asked < 40
            await client.start_evaluation(request)
            last = [progress async for progress in client.watch_evaluation(evaluation)][-1]
            assert last.state == pb.EVALUATION_STATE_DONE
            assert sum(judge.calls.values()) <= 40 + 4
            await pool.close()
            await service.stop()

    asyncio.run(run())


def test_a_restarted_service_goes_on_from_its_journal(tmp_path: Path) -> None:
    write_pairs(tmp_path, 40)

    async def run() -> None:
        async with StandIn(latency_s=0.1) as judge:
            service, pool, client = await _service(tmp_path)
            request = pb.StartEvaluationRequest(request_id="r", config_json=_settings(tmp_path, judge.base_url))
            evaluation = (await client.start_evaluation(request)).evaluation_id
            async for progress in client.watch_evaluation(evaluation):
                if progress.records_done >= 8:
                    break
            await pool.close()
            await service.stop()
            asked = sum(judge.calls.values())
            assert asked < 40
            service, pool, client = await _service(tmp_path)
            last = [progress async for progress in client.watch_evaluation(evaluation)][-1]
            assert (last.state, last.records_done) == (pb.EVALUATION_STATE_DONE, 40)
            assert sum(judge.calls.values()) <= 40 + 4
            summary = json.loads((await client.get_report(evaluation)).summary_json)
            assert summary["run"]["from_journal"] >= 8
            await pool.close()
            await service.stop()
            service, pool, client = await _service(tmp_path)
            assert (await client.get_report(evaluation)).state == pb.EVALUATION_STATE_DONE
            await pool.close()
            await service.stop()

    asyncio.run(run())


def test_a_damaged_state_folder_hurts_only_itself(tmp_path: Path) -> None:
    write_pairs(tmp_path, 3)
    for name, text in (("cut", '{"outp'), ("other", '{"gone": 1}'), ("list", "[]")):
        folder = tmp_path / "state" / name
        folder.mkdir(parents=True)
        (folder / "request.json").write_text(text)

    async def run() -> None:
        async with StandIn(latency_s=0.3) as judge:
            service, pool, client = await _service(tmp_path)
            with pytest.raises(NotFoundError):
                await client.get_report("cut")
            request = pb.StartEvaluationRequest(request_id="r", config_json=_settings(tmp_path, judge.base_url))
            evaluation = (await client.start_evaluation(request)).evaluation_id
            # Its end cannot be noted; those who watch hear of it all the same.
            (tmp_path / "state" / evaluation / "ended.part").mkdir()
            seen = [progress async for progress in client.watch_evaluation(evaluation)]
            assert seen[-1].state == pb.EVALUATION_STATE_DONE
            (tmp_path / "state").rename(tmp_path / "gone")
            (tmp_path / "state").touch()
            other = pb.StartEvaluationRequest(request_id="s", config_json=_settings(tmp_path, judge.base_url))
            with pytest.raises(FailedPreconditionError, match="the service cannot write"):
                await client.start_evaluation(other)
            await pool.close()
            await service.stop()

    asyncio.run(run())
