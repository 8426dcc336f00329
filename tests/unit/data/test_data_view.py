"""Rows as tokens with roles."""

from __future__ import annotations

from rlctl.data.kto import Judged
from rlctl.data.preference import Pair
from rlctl.data.process import Steps
from rlctl.data.supervised import Example
from rlctl.data.view import token_texts, view
from rlctl.models.arithmetic import build_tokenizer


def test_texts_of_tokens_join_to_the_text_and_characters_stay_whole():
    # Bytes are tokens here: the Cyrillic letter and the smile are 2 and 4 of them.
    tokenizer = build_tokenizer()
    text = "1 + 2 = ж 🙂!"
    texts = token_texts(tokenizer(text).input_ids, tokenizer)
    assert "".join(texts) == "<s>" + text
    assert "ж" in texts
    assert "🙂" in texts
    assert len(texts) == len(tokenizer(text).input_ids)


def test_bytes_that_are_no_character_do_not_swallow_what_follows():
    tokenizer = build_tokenizer()
    first_byte = tokenizer("ж", add_special_tokens=False).input_ids[:1]
    digits = tokenizer("123456", add_special_tokens=False).input_ids
    texts = token_texts([*first_byte, *digits], tokenizer)
    assert "".join(texts).endswith("23456")


def test_roles_say_what_the_loss_sees():
    tokenizer = build_tokenizer()
    one, two, three = tokenizer("123", add_special_tokens=False).input_ids
    eos = tokenizer.eos_token_id

    def roles(item):
        return [[(token.text, token.role) for token in line.tokens] for line in view(item, tokenizer)]

    assert roles(Example([one], [two, three, eos], [True, False, True])) == [
        [("1", "read"), ("2", "learnt"), ("3", "read"), ("</s>", "learnt")]
    ]
    assert roles(Pair([one], [two], [three], 0.5)) == [
        [("1", "read"), ("2", "better")],
        [("1", "read"), ("3", "worse")],
    ]
    assert roles(Judged([one], [two], False)) == [[("1", "read"), ("2", "worse")]]
    assert roles(Steps([one, two, three], [0, 2], [0.75, 0.25])) == [[("1", "right"), ("2", "read"), ("3", "wrong")]]
    assert view(Pair([one], [two], [three], 0.5), tokenizer)[0].title == "chosen, margin 0.5"
    assert view(Example([one], [two, three], [True, False]), tokenizer)[0].learnt == 1
