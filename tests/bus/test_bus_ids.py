"""Names of groups, subjects and streams."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl.bus.ids import (
    decode_name,
    encode_name,
    group_key,
    group_subject,
    parse_group_key,
    stream_name,
    stream_subjects,
)
from rlctl.core.errors import InvalidArgumentError
from rlctl.v1.rollout_pb2 import GroupId


def test_a_group_is_named_by_run_epoch_prompt_and_attempt() -> None:
    id = GroupId(run="exp.2_a", epoch=3, prompt=12345678901, attempt=2)
    assert group_key(id) == "exp.2_a/3/12345678901/2"
    assert parse_group_key("exp.2_a/3/12345678901/2") == id


def test_dots_of_a_run_name_do_not_separate_parts_of_a_subject() -> None:
    id = GroupId(run="exp.2_a", epoch=3, prompt=7, attempt=0)
    assert group_subject(id, "prompts") == "rlctl.exp_d2__a.prompts.3.7.0"
    assert stream_subjects("exp.2_a", "rollouts") == "rlctl.exp_d2__a.rollouts.>"
    assert stream_name("exp.2_a", "rollouts") == "rlctl-exp_d2__a-rollouts"


@pytest.mark.parametrize(
    "key", ["", "run", "run/1/2", "run/1/2/3/4", "run/-1/2/3", "run/a/2/3", "/1/2/3", "a b/1/2/3", ".x/1/2/3"]
)
def test_what_is_no_group_key_is_refused(key: str) -> None:
    with pytest.raises(InvalidArgumentError, match="run/epoch/prompt/attempt"):
        parse_group_key(key)


@pytest.mark.parametrize("name", ["", "a*b", "a>b", "a b", "a/b", ".a", "x" * 65, "a\n"])
def test_names_that_would_be_wildcards_or_break_a_subject_are_refused(name: str) -> None:
    with pytest.raises(InvalidArgumentError):
        encode_name(name)


@given(st.from_regex(r"[A-Za-z0-9_\-][A-Za-z0-9_.\-]{0,63}", fullmatch=True))
def test_encoding_of_names_can_be_undone(name: str) -> None:
    encoded = encode_name(name)
    assert decode_name(encoded) == name
    assert "." not in encoded
