"""A bounded number of mutated files, always the same; `python -m tests.fuzz` runs others, and more."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from ddpsim.errors import InputError
from tests.fuzz import loaders
from tests.fuzz.run import run_commands, run_loaders
from tests.fuzz.running import judged, random_of

SEED = 22
CASES, COMMANDS = 150, 120
HANGS_S = 60.0
"""Beyond it a case hangs, on however busy a machine."""


@pytest.mark.parametrize("name", sorted(loaders.targets()))
def test_loaders_refuse_mutated_files_in_one_short_message(name: str, tmp_path: Path) -> None:
    assert run_loaders(CASES, SEED, tmp_path, only=name, most_s=HANGS_S) == []


def test_commands_refuse_mutated_files_in_one_short_message(tmp_path: Path) -> None:
    assert run_commands(COMMANDS, SEED, tmp_path, most_s=HANGS_S) == []


@pytest.mark.parametrize("name", sorted(loaders.targets()))
def test_a_loader_takes_what_is_not_mutated(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaders, "mutated_document", lambda document, random: document)
    monkeypatch.setattr(loaders, "mutated_bytes", lambda content, random: content)
    target = loaders.targets()[name]
    file = tmp_path / target.file
    file.parent.mkdir(parents=True, exist_ok=True)
    for number in range(10):
        file.write_bytes(target.content(Random(number)))
        target.load(file)


def test_the_same_seed_makes_the_same_case() -> None:
    target = loaders.targets()["workload"]
    first, again, other = (target.content(random_of(seed, "workload", 7)) for seed in (1, 1, 2))
    assert first == again != other


def test_what_a_case_is_judged_by() -> None:
    def raises(error: Exception) -> object:
        raise error

    assert judged("x 1", lambda: None) is None
    assert judged("x 1", lambda: raises(InputError("bad"))) is None
    failed = judged("x 1", lambda: raises(ValueError("bad")))
    assert failed is not None
    assert failed.kind.startswith("ValueError at ")
