"""What the report on torch's own tests says, and its exit code."""

from __future__ import annotations

import pytest

from tests.conformance.run import report

ROWS = {
    "test_a": {"tier": "A", "torch": "passed"},
    "test_b": {"tier": "A", "torch": "passed"},
    "test_c": {"tier": "B", "torch": "failed"},
}
PASSED, FAILED, SKIPPED = ("passed", ""), ("failed", "RuntimeError: of ours"), ("skipped", "no GPU")


@pytest.mark.parametrize(
    ("results", "whole", "code", "said"),
    [
        ({"test_a": PASSED, "test_b": PASSED, "test_c": FAILED}, True, 0, ["tier A: 2 of 2"]),
        ({"test_a": PASSED, "test_b": FAILED}, True, 1, ["tier A: 1 of 2", "A test_b: RuntimeError: of ours"]),
        ({"test_a": PASSED, "test_b": SKIPPED}, True, 1, ["tier A: 1 of 2", "A test_b: no GPU"]),
        ({"test_a": PASSED}, True, 1, ["tier A: 1 of 2", "A test_b: was not collected"]),
        ({"test_a": PASSED}, False, 0, ["tier A: 1 of 1"]),
        ({"test_a": PASSED, "test_new": FAILED}, False, 0, ["tier A: 1 of 1", "not in tests.tsv: test_new (failed)"]),
        ({}, False, 1, ["no test was selected"]),
    ],
)
def test_what_torch_passes_must_be_there_and_pass(
    capsys: pytest.CaptureFixture[str], results: dict[str, tuple[str, str]], whole: bool, code: int, said: list[str]
) -> None:
    assert report(ROWS, results, whole=whole) == code
    printed = capsys.readouterr().out.splitlines()
    assert [part in line for part, line in zip(said, printed, strict=True)] == [True] * len(said), printed
