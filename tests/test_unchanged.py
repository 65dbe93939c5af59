"""What the record of all answers calls a difference."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unchanged.command import PROGRESS
from tests.unchanged.differences import differences
from tests.unchanged.messages import in_order
from tests.unchanged.refusals import TAKEN, together
from tests.unchanged.values import PREDICT


def found(before: Any, after: Any) -> list[tuple[str, str]]:
    return [(each.key, each.kind) for each in differences(before, after)]


@pytest.mark.parametrize(
    ("before", "after", "differ"),
    [
        ({"a": 1.0}, {"a": 1.0 + 1e-14, "b": 2}, []),
        ({"a": 1.0}, {"a": 1.0 + 1e-9}, [(".a", "number")]),
        ({"a": None}, {}, [(".a", "key")]),
        ({"a": None}, {"a": 0.0}, [(".a", "value")]),
        ({"a": [1, 2]}, {"a": [1]}, [(".a", "value")]),
        ({"a": True}, {"a": 1}, []),
        ({"provenance": 1}, {"provenance": 2}, []),
        ({"provenance": 1}, {}, [(".provenance", "key")]),
        ("step 17.98 ms", "step 17.98 ms", []),
        ("step 17.98 ms", "step 17.99 ms", [(" (number 1)", "number")]),
        ("step 17.98 ms", "iteration 17.98 ms", [(" (words)", "words")]),
        ("step 17.98 ms\nof 3", "3 a step of 17.98 ms", [(" (words)", "words")]),
        ("step 17.98 ms", "iteration 17.99 ms", [(" (words)", "words"), (" (numbers)", "number")]),
        ("1,234 samples", "1234 samples", []),
        ("a ---- b", "a ------ b", []),
    ],
)
def test_a_difference_is_a_number_words_or_a_key_that_is_gone(before: Any, after: Any, differ: Any) -> None:
    assert found(before, after) == differ


def test_a_number_is_small_beside_what_is_large() -> None:
    assert not list(differences({"a": 1.0}, {"a": 1.0 + 1e-10}, scale=1e3))
    assert list(differences({"a": 1.0}, {"a": 1.0 + 1e-8}, scale=1e3))


def test_a_difference_shows_old_new_and_relative() -> None:
    [one] = differences({"a": 2.0}, {"a": 3.0})
    assert str(one) == ".a: 2.0 -> 3.0 (+0.5)"


def test_messages_of_several_threads_have_no_order() -> None:
    assert in_order([(1, "b"), (1, "a")], fixed=True) == ["b", "a"]
    assert in_order([(1, "b"), (1, "a")], fixed=False) == ["a", "b"]
    assert in_order([(1, "b"), (2, "a")], fixed=True) == ["a", "b"]


def test_how_long_a_command_will_take_is_no_answer() -> None:
    kept = "note: 2 of 3 machines\nerror: rank 1 of 4 is gone\n"
    assert PROGRESS.sub("", f"candidates: 1,026 of 1,948, 1 min 22 s left\n{kept}plans: 3 of 3\n") == kept


def test_a_pair_of_options_is_taken_or_refused_with_the_message() -> None:
    asked = {"one": ["--nodes", "1"], "two": ["--bucket-cap-mb", "1", "--bucket-cap-mb-list", "1"]}
    one, two = together("ddpsim", PREDICT, asked).values()
    assert one == TAKEN
    assert "--bucket-cap-mb" in two
