"""A hundred mutated files for each loader, of a fresh seed; `python -m studies.fuzz --seed N` makes more of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from ddpsim.common.errors import InputError
from studies.fresh import seed
from studies.fuzz import loaders
from studies.fuzz.run import Run, run_cases
from studies.fuzz.running import LONGEST, judged, random_of

SEED = seed()
CASES, COMMANDS = 100, 100
REFUSED = {"kineto.other"}
"""Targets whose files are of other tools, and refused by name as they are."""
HANGS_S = 60.0
"""Beyond it a case hangs, on however busy a machine."""


@pytest.mark.parametrize("name", sorted(loaders.targets()))
def test_loaders_refuse_mutated_files_in_one_short_message(name: str, tmp_path: Path) -> None:
    assert run_cases(CASES, Run(SEED, tmp_path, name, HANGS_S)).failures == []


def test_commands_refuse_mutated_files_in_one_short_message(tmp_path: Path) -> None:
    assert run_cases(COMMANDS, Run(SEED, tmp_path, "commands", HANGS_S)).failures == []


@pytest.mark.parametrize("name", sorted(loaders.targets().keys() - REFUSED))
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


def test_processes_run_the_cases_that_one_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(path: Path) -> None:
        raise KeyError(path.read_bytes()[:50])

    monkeypatch.setitem(loaders.targets(), "workload", replace(loaders.targets()["workload"], load=load))
    alone, shared = (run_cases(1100, Run(1, tmp_path, most_s=HANGS_S), workers=workers) for workers in (1, 2))
    assert [each.case for each in alone.failures] == [each.case for each in shared.failures] != []
    assert alone.cases == shared.cases
    assert set(alone.cases) == set(loaders.targets())


def test_what_a_case_is_judged_by() -> None:
    def raises(error: Exception) -> object:
        raise error

    assert judged("x 1", lambda: None) is None
    assert judged("x 1", lambda: raises(InputError("bad"))) is None
    failed = judged("x 1", lambda: raises(ValueError("bad")))
    assert failed is not None
    assert failed.kind.startswith("ValueError at ")
    assert judged("x 1", lambda: raises(InputError("\n  a line" * 500))) is None
    assert judged("x 1", lambda: raises(InputError("\n  a line" + "x" * LONGEST))) is not None
