from __future__ import annotations

import pytest

from ddpsim.common.errors import InputError
from ddpsim.common.files import parse_json
from ddpsim.common.strict import check_values


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"a": [0, {"b": -Infinity}]}', ["a.1.b", "-inf is not a finite number"]),
        ('{"a": NaN}', ["a", "nan"]),
        ('{"a": 1e999}', ["a", "inf"]),
        (f'{{"a": {{"b": -1{"0" * 400}}}}}', ["a.b", "401 digits"]),
        (r'["\ud800 x"]', ["0", r"'\ud800 x' is not text"]),
        (r'{"a": {"\ud800": 1}}', ["a", "is not text"]),
        (f'{{"a": 1{"0" * 400}, ', ["not JSON"]),
    ],
)
def test_values_that_no_file_holds_are_told_with_their_path(text: str, words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        parse_json(text, "f.json", InputError, "mend it")
    assert str(caught.value).startswith("f.json: ")
    assert str(caught.value).endswith("; mend it")
    for word in words:
        assert word in str(caught.value)


def test_numbers_and_texts_that_files_do_hold() -> None:
    text = r'{"id": 340282366920938463463374607431768211455, "x": 1.7e308, "face": "\ud83d\ude00", "empty": [{}, []]}'
    document = {"id": (1 << 128) - 1, "x": 1.7e308, "face": "\U0001f600", "empty": [{}, []]}
    assert parse_json(text, "f.json", InputError, "") == document


def test_a_profilers_trace_may_hold_what_is_not_finite() -> None:
    assert parse_json("[Infinity, 1e999]", "f.json", InputError, "", finite=False) == [float("inf")] * 2
    with pytest.raises(InputError, match="401 digits"):
        parse_json(f"[1{'0' * 400}]", "f.json", InputError, "", finite=False)


def test_json_that_is_no_text() -> None:
    with pytest.raises(InputError, match="not text"):
        parse_json(b'["\xed\xa0\x80"]', "f.json", InputError, "")


def test_what_holds_itself_ends() -> None:
    ring: list[object] = []
    ring.append(ring)
    with pytest.raises(InputError, match="nested too deep"):
        check_values(ring, "f", InputError, "")
    broad: list[object] = [0] * 10
    for _ in range(9):
        broad = [broad] * 10
    with pytest.raises(InputError, match="more than 1,000 values"):
        check_values(broad, "f", InputError, "", most=1000)
