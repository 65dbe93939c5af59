"""The committed page of validation is what its command writes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from studies.validation import validation
from studies.validation.validation_page import NOTHING


def test_a_page_without_runs_says_so(tmp_path: Path) -> None:
    text = validation.page(tmp_path, tmp_path)
    assert text.count(NOTHING) == 3
    assert "| resnet50 | resnext101_32x8d, held out |" in text


def test_the_committed_page_is_what_its_command_writes_around_the_lab(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the lab's rows are is held in `test_kept_lab.py`; all else is written again, to the letter."""
    committed = validation.TARGET.read_text()
    lab = re.search(r"real\.\n\n(.*?)\n## One GPU", committed, re.DOTALL)
    assert lab
    written = validation._recorded
    monkeypatch.setattr(
        validation,
        "_recorded",
        lambda record, folder, name: lab[1] if record.name == "lab" else written(record, folder, name),
    )
    assert validation.page(validation.ROOT / "traces", tmp_path) == committed, "run `make validation`"
