"""How far the responses of a policy are from a reference model, asked of a reference service and kept in a file.

The mean of log pi(y) - log ref(y) over samples y of pi estimates KL(pi || ref) of whole responses, in nats.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rlctl.clients.answers import AnswerFile, Row, answer
from rlctl.clients.reference import ReferenceClient
from rlctl.offline.asking import Question, by_key, with_pool
from rlctl.rpc.config import ChannelConfig
from rlctl.rpc.pool import Pool
from rlctl.v1 import reference_pb2
from rlctl.v1.tensor_pb2 import TokenSequence


async def compare_all(
    file: AnswerFile,
    responses: Sequence[Row],
    questions: Sequence[Question],
    channel: ChannelConfig,
    *,
    temperature: float,
    at_once: int,
    on_answer: Callable[[], None] = lambda: None,
) -> list[Row]:
    """What the file lacks: `request`, `sample` and `log_ratio` of each response, nats: its log-prob under the policy
    that sampled it (`token_ids`, `logprobs`) less that under the reference, both at `temperature`.

    Raises what the calls raise.
    """
    groups = by_key(responses)
    prompts: Mapping[str, Sequence[int]] = {
        question.key: question.request.tokens.ids for question in questions if question.key in groups
    }

    async def work(pool: Pool) -> list[Row]:
        client = ReferenceClient(pool)

        async def ask(key: str) -> list[Row]:
            rows = groups[key]
            sequences = [TokenSequence(prompt_ids=prompts[key], response_ids=row["token_ids"]) for row in rows]
            request = reference_pb2.ComputeLogprobsRequest(sequences=sequences, temperature=temperature)
            told = await client.compute_logprobs(request, timeout_s=channel.timeout_s)
            return [
                {"sample": row["sample"], "log_ratio": sum(row["logprobs"]) - sum(reference.values)}
                for row, reference in zip(rows, told.logprobs, strict=True)
            ]

        return await answer(file, ask, at_once=at_once, on_answer=on_answer)

    rows: list[Row] = await with_pool("reference", channel, None, work)
    return rows
