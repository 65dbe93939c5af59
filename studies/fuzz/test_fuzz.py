"""A hundred mutated files for each loader, of a fresh seed; `python -m studies.fuzz --seed N` makes more of them."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from ddpsim.errors import InputError
from studies.fresh import seed
from studies.fuzz import loaders
from studies.fuzz.run import run_commands, run_loaders
from studies.fuzz.running import judged, random_of

SEED = seed()
CASES, COMMANDS = 100, 100
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
