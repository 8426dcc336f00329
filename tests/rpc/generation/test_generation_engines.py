"""What both engines must do alike, through gRPC."""

from __future__ import annotations

import time

import pytest

from rlctl.core.errors import DeadlineError, InvalidArgumentError
from rlctl.v1 import generation_pb2 as pb
from support.generation import Caller, Deployment
from support.tiny import CHARACTERS

PROMPT = [1, 7, 8, 9, 20]

#: Tokens of the tiny model: <pad> <s> </s> <unk>, then its characters in order of their code points.
BOS, EOS = 1, 2


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_are_those_of_transformers_after_the_temperature(deployment: Deployment, temperature: float) -> None:
    response = deployment.caller.tokens(PROMPT, n=4, max_tokens=40, temperature=temperature, ignore_eos=True)
    for sample in response.samples:
        expected = deployment.logprobs(PROMPT, list(sample.token_ids), temperature)
        assert len(sample.logprobs) == 40
        assert sample.logprobs == pytest.approx(expected.tolist(), abs=2e-4)
        assert sample.policy_versions == [deployment.version]


def test_a_greedy_response_has_the_likeliest_tokens(deployment: Deployment) -> None:
    greedy = deployment.caller.tokens(PROMPT, temperature=0, max_tokens=12, ignore_eos=True).samples[0]
    only_one = deployment.caller.tokens(PROMPT, top_k=1, max_tokens=12, ignore_eos=True).samples[0]
    assert greedy.token_ids == only_one.token_ids
    assert greedy.logprobs == pytest.approx(deployment.logprobs(PROMPT, list(greedy.token_ids)).tolist(), abs=2e-4)
    assert only_one.logprobs == pytest.approx([0.0] * 12)


def test_a_seed_gives_the_same_samples_and_each_of_n_its_own(caller: Caller) -> None:
    def draw(seed: int) -> list[list[int]]:
        response = caller.tokens(PROMPT, n=3, max_tokens=16, seed=seed, ignore_eos=True)
        return [list(sample.token_ids) for sample in response.samples]

    first, again, other = draw(5), draw(5), draw(99)
    assert first == again
    assert first[0] != first[1] != first[2]
    assert first != other
    # Sample i draws from seed + i.
    assert draw(6)[:2] == first[1:]


def test_text_chat_and_tokens_become_prompts(caller: Caller) -> None:
    sampling = pb.SamplingParams(max_tokens=1)
    ids = {character: index for index, character in enumerate(sorted(set(CHARACTERS)), 4)}
    text = caller.generate(pb.GenerateRequest(text="1+2=", sampling=sampling))
    assert list(text.prompt_token_ids) == [ids[c] for c in "1+2="]
    chat = pb.Chat(messages=[pb.ChatMessage(role="user", content="hi")])
    spoken = caller.generate(pb.GenerateRequest(chat=chat, sampling=sampling))
    assert list(spoken.prompt_token_ids) == [BOS, *(ids[c] for c in "user: hi\nassistant: ")]
    assert list(caller.tokens(PROMPT, max_tokens=1).prompt_token_ids) == PROMPT


def test_a_stop_text_ends_a_response_and_is_not_part_of_it(caller: Caller) -> None:
    free = caller.tokens(PROMPT, max_tokens=40, seed=3, ignore_eos=True).samples[0]
    stop = free.text[10:12]
    cut = caller.tokens(PROMPT, max_tokens=40, seed=3, ignore_eos=True, stop=[stop]).samples[0]
    assert cut.finish_reason == pb.FINISH_REASON_STOP
    assert cut.text == free.text[: free.text.index(stop)]
    assert list(cut.token_ids) == list(free.token_ids)[: len(cut.token_ids)]
    assert len(cut.logprobs) == len(cut.token_ids) < 40


def test_a_stop_token_ends_a_response(caller: Caller) -> None:
    free = caller.tokens(PROMPT, max_tokens=40, seed=3, ignore_eos=True).samples[0]
    stop = free.token_ids[7]
    cut = caller.tokens(PROMPT, max_tokens=40, seed=3, ignore_eos=True, stop_token_ids=[stop]).samples[0]
    assert list(cut.token_ids) == list(free.token_ids)[: list(free.token_ids).index(stop) + 1]
    assert cut.finish_reason == pb.FINISH_REASON_STOP


def test_the_eos_is_kept_and_ends_a_response_unless_ignored(caller: Caller) -> None:
    responses = caller.tokens(PROMPT, n=64, max_tokens=60, seed=1)
    ended = [sample for sample in responses.samples if sample.finish_reason == pb.FINISH_REASON_STOP]
    assert ended and all(sample.token_ids[-1] == EOS and EOS not in sample.token_ids[:-1] for sample in ended)
    assert all("</s>" not in sample.text for sample in ended)
    going_on = caller.tokens(PROMPT, n=64, max_tokens=60, seed=1, ignore_eos=True)
    assert all(len(sample.token_ids) == 60 for sample in going_on.samples)


def test_a_response_ends_where_the_context_ends(caller: Caller) -> None:
    sample = caller.tokens([1] * 500, ignore_eos=True).samples[0]
    assert len(sample.token_ids) == 12
    assert sample.finish_reason == pb.FINISH_REASON_LENGTH


def test_pieces_of_a_stream_add_up_to_the_response(caller: Caller) -> None:
    request = pb.GenerateRequest(
        text="1+2=", sampling=pb.SamplingParams(max_tokens=30, seed=4, ignore_eos=True), return_logprobs=True
    )
    whole = caller.generate(request).samples[0]
    pieces = caller.stream(request)
    assert len(pieces) > 3
    assert "".join(piece.text for piece in pieces) == whole.text
    assert [token for piece in pieces for token in piece.token_ids] == list(whole.token_ids)
    assert [one for piece in pieces for one in piece.logprobs] == pytest.approx(list(whole.logprobs), abs=1e-4)
    assert [piece.finish_reason for piece in pieces[:-1]] == [0] * (len(pieces) - 1)
    assert pieces[-1].finish_reason == pb.FINISH_REASON_LENGTH
    assert pieces[-1].policy_versions == whole.policy_versions


def test_penalties_keep_tokens_from_coming_back(caller: Caller) -> None:
    def repeats(**penalties: float) -> int:
        sample = caller.tokens(PROMPT, max_tokens=40, temperature=0.3, seed=2, ignore_eos=True, **penalties).samples[0]
        return 40 - len(set(sample.token_ids))

    assert repeats(frequency_penalty=2.0, presence_penalty=2.0) < repeats()
    assert repeats(repetition_penalty=5.0) < repeats()


BAD = {
    "tokens": pb.GenerateRequest(tokens={"ids": [1, 80]}),
    "text": pb.GenerateRequest(text="a" * 512),
    "prompt": pb.GenerateRequest(),
    "chat.messages": pb.GenerateRequest(chat=pb.Chat()),
    "chat.messages[0].role": pb.GenerateRequest(chat=pb.Chat(messages=[pb.ChatMessage(role="me", content="x")])),
    "sampling.n": pb.GenerateRequest(text="a", sampling=pb.SamplingParams(n=0)),
    "sampling.temperature": pb.GenerateRequest(text="a", sampling=pb.SamplingParams(temperature=float("nan"))),
    "sampling.top_p": pb.GenerateRequest(text="a", sampling=pb.SamplingParams(top_p=0)),
    "sampling.min_p": pb.GenerateRequest(text="a", sampling=pb.SamplingParams(min_p=1)),
    "sampling.max_tokens": pb.GenerateRequest(text="a", sampling=pb.SamplingParams(max_tokens=0)),
    "sampling.seed": pb.GenerateRequest(text="a", sampling=pb.SamplingParams(seed=2**64 - 1)),
    "sampling.stop": pb.GenerateRequest(text="a", sampling=pb.SamplingParams(stop=[""])),
    "sampling.stop_token_ids": pb.GenerateRequest(text="a", sampling=pb.SamplingParams(stop_token_ids=[80])),
    "sampling.presence_penalty": pb.GenerateRequest(text="a", sampling=pb.SamplingParams(presence_penalty=3)),
    "sampling.frequency_penalty": pb.GenerateRequest(
        text="a", sampling=pb.SamplingParams(frequency_penalty=float("inf"))
    ),
    "sampling.repetition_penalty": pb.GenerateRequest(text="a", sampling=pb.SamplingParams(repetition_penalty=0)),
}


def test_a_bad_request_is_told_by_field_and_the_engine_lives_on(caller: Caller) -> None:
    for field, request in BAD.items():
        with pytest.raises(InvalidArgumentError) as refused:
            caller.generate(request)
        assert refused.value.metadata["field"] == field
        assert field in refused.value.message
    greedy = pb.GenerateRequest(text="a", sampling=pb.SamplingParams(n=2, temperature=0))
    with pytest.raises(InvalidArgumentError, match="greedy"):
        caller.generate(greedy)
    with pytest.raises(InvalidArgumentError, match="a stream has one sample"):
        caller.stream(pb.GenerateRequest(text="a", sampling=pb.SamplingParams(n=2)))
    extreme = pb.SamplingParams(
        temperature=0.01, top_k=2**32 - 1, top_p=1e-6, seed=0, max_tokens=2**32 - 1, stop_token_ids=[0], n=3
    )
    assert len(caller.generate(pb.GenerateRequest(text="a", sampling=extreme)).samples) == 3


def test_a_cancelled_or_late_call_frees_its_place(caller: Caller) -> None:
    long = pb.GenerateRequest(text="a", sampling=pb.SamplingParams(n=16, max_tokens=200, ignore_eos=True))
    begin = time.monotonic()
    caller.generate(long)
    undisturbed_s = time.monotonic() - begin
    for _ in range(4):
        call = caller.start(long)
        time.sleep(0.05)
        call.cancel()
        with pytest.raises(DeadlineError):
            caller.start(long, timeout_s=0.1).result(60)
    begin = time.monotonic()
    caller.tokens(PROMPT, max_tokens=1)
    # Eight such calls would stand before this one.
    assert time.monotonic() - begin < 2 * undisturbed_s + 0.5


def test_counters_count_what_was_answered(caller: Caller) -> None:
    before = caller.model()
    calls = [
        caller.start(pb.GenerateRequest(text="1+1", sampling=pb.SamplingParams(n=2, max_tokens=5, ignore_eos=True)))
        for _ in range(20)
    ]
    assert all(len(call.result(60).samples) == 2 for call in calls)
    after = caller.model()
    assert after.prompts_generated - before.prompts_generated == 20
    assert after.tokens_generated - before.tokens_generated == 20 * 2 * 5
    assert (after.max_model_len, after.vocab_size, after.dtype) == (512, 80, "float32")
