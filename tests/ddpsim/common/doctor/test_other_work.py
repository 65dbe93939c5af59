"""Other work on the machine is told apart from the measurement's own."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from ddpsim.common.other_work import OtherWork, ProcessorClock, ProcessorUse, find_other_work

SPIN = "import time; end = time.process_time() + {}\nwhile time.process_time() < end: pass"
linux = pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")


def use(machine: str, job: int, all_s: float, own_s: float, wall_s: float = 10.0) -> ProcessorUse:
    return ProcessorUse(machine, 4, job, wall_s, all_s, own_s)


def test_ranks_of_one_job_count_its_work_once_and_those_of_several_jobs_add_up() -> None:
    assert find_other_work([use("a", 1, 30, 20), use("a", 1, 29, 20)]) == OtherWork(1.0, 4)
    assert find_other_work([use("a", 1, 30, 10), use("a", 2, 30, 15)]) == OtherWork(0.5, 4)
    assert find_other_work([use("a", 1, 30, 28), use("b", 1, 30, 10)]) == OtherWork(2.0, 4)
    assert find_other_work([None, use("a", 1, 10, 12)]) == OtherWork(0.0, 4)
    assert find_other_work([None]) is None


def test_what_disturbs_says_how_many_processors(busy_is_told: None) -> None:
    assert not OtherWork(0.79, 4).disturbs
    assert OtherWork(0.8, 4).disturbs
    assert "other work took 1.5 of its 4 processors" in OtherWork(1.5, 4).text()


@linux
def test_what_this_process_and_those_below_it_take_is_its_own() -> None:
    clock = ProcessorClock()
    subprocess.run([sys.executable, "-c", SPIN.format(0.3)], check=True)
    end = time.process_time() + 0.3
    while time.process_time() < end:
        pass
    found = clock.since()
    assert found is not None
    assert found.own_s >= 0.5
    assert found.all_s >= found.own_s - 0.1
    assert found.wall_s >= 0.4


@linux
def test_what_another_job_takes_is_other_work() -> None:
    idle = subprocess.Popen(["sleep", "60"])
    try:
        clock = ProcessorClock(idle.pid)
        subprocess.run([sys.executable, "-c", SPIN.format(0.4)], check=True)
        seen = clock.since()
    finally:
        idle.kill()
        idle.wait()
    found = find_other_work([seen])
    assert seen is not None
    assert found is not None
    assert found.busy * seen.wall_s >= 0.3


def test_a_system_that_does_not_tell_says_nothing(tmp_path: Path) -> None:
    assert ProcessorClock(proc=tmp_path).since() is None
