"""Keys and parts."""

from __future__ import annotations

from rlctl.data.split import part_of, row_key


def test_the_key_forgets_the_order_of_matches_only():
    assert row_key("9 + 15 =", r"\d+") == row_key("15 + 9 =", r"\d+")
    assert row_key("9 + 15 =", r"\d+") != row_key("9 + 16 =", r"\d+")
    # Two keys are never the same by joining: 1 and 23 are not 12 and 3.
    assert row_key("1 + 23", r"\d+") != row_key("12 + 3", r"\d+")
    assert row_key("9 + 15 =", "") == "9 + 15 ="


def test_parts_get_their_shares():
    shares = {"train": 0.7, "dev": 0.1, "test": 0.2}
    found = [part_of(f"key {number}", shares) for number in range(10_000)]
    for name, share in shares.items():
        # Four standard deviations of a binomial.
        assert abs(found.count(name) / 10_000 - share) < 4 * (share * (1 - share) / 10_000) ** 0.5
    assert "" not in found


def test_what_the_shares_leave_over_lies_in_no_part():
    found = [part_of(f"key {number}", {"train": 0.25}) for number in range(2000)]
    assert set(found) == {"train", ""}
    assert 400 < found.count("train") < 600


def test_a_part_does_not_depend_on_the_parts_behind_it():
    for number in range(200):
        key = f"key {number}"
        assert (part_of(key, {"a": 0.5, "b": 0.5}) == "a") == (part_of(key, {"a": 0.5, "c": 0.1}) == "a")
