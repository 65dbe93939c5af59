"""Which labs are taken for dead, without a lab: no namespaces, locks in a folder of the test's own."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path
from typing import TextIO

import pytest

from ddpexec.lab.netlab import lab as lab_module

LEFT_S = 0.3
"""What the other lab gets for what it would do wrong; it takes a fraction of that."""


@pytest.fixture(autouse=True)
def _own_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab_module, "LOCKS", tmp_path)
    monkeypatch.setattr(lab_module, "namespaces", list)


def test_a_lab_is_not_taken_for_dead_while_it_takes_its_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flock, others, removed = fcntl.flock, list[threading.Thread](), list[str]()

    def other_lab() -> None:
        removed.extend(lab_module.remove_leftovers())

    def flock_late(file: TextIO, operation: int) -> None:
        if Path(file.name).name.startswith(lab_module.PREFIX) and not others:
            others.append(threading.Thread(target=other_lab))
            others[0].start()
            others[0].join(LEFT_S)
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", flock_late)
    with lab_module.claim_name() as name:
        others[0].join()
        assert removed == []
        assert (tmp_path / f"{name}.lock").exists()


def test_a_lab_begins_when_another_has_looked_for_dead_ones(tmp_path: Path) -> None:
    claimed = threading.Event()

    def lab() -> None:
        with lab_module.claim_name():
            claimed.set()

    claiming = threading.Thread(target=lab)
    own = tmp_path / f"{lab_module.PREFIX}-{os.getpid()}.lock"
    with (tmp_path / "claiming.lock").open("w") as looking, own.open("w") as looked_at:
        fcntl.flock(looking, fcntl.LOCK_EX)
        fcntl.flock(looked_at, fcntl.LOCK_EX)
        claiming.start()
        assert not claimed.wait(LEFT_S)
    claiming.join()
    assert claimed.is_set()


def test_locks_of_processes_that_are_gone_are_removed_and_those_held_stay(tmp_path: Path) -> None:
    dead, held = (tmp_path / f"{lab_module.PREFIX}-{number}.lock" for number in (1, 2))
    dead.touch()
    with held.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert lab_module.remove_leftovers() == [dead.stem]
    assert held.exists()
    assert not dead.exists()
