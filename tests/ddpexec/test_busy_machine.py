"""Whoever measures is told when the machine was busy with other work: by every command that measures."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

pytest.importorskip("torch")

from ddpexec.tuning.decision import RoundDecision
from ddpsim.common.other_work import OtherWork, ProcessorClock, ProcessorUse
from tests import forked

BUSY = ProcessorUse("here", processors=2, job=1, wall_s=10.0, all_s=17.0, own_s=4.0)
KEYS = {"other_work_processors": 1.3, "processors": 2}
SAID = "note: the machine was busy: other work took 1.3 of its 2 processors meanwhile"
pytestmark = pytest.mark.usefixtures("busy_is_told")

RANKS = (*forked.TORCHRUN, "2", "-m", "ddpexec")
CAPTURE = shlex.split("capture --model mlp --device cpu --iterations 1 --warm-up 0 -o it.json --json")


@pytest.mark.parametrize(
    "command",
    [
        (*RANKS, "run", "--model", "mlp", "--batch-size", "1", "--iterations", "1", "--out", "it", "--json"),
        (*RANKS, "microbench", "-b", "4K", "-e", "4K", "-o", "it.json", "--json"),
        ("python", "-m", "ddpexec", *CAPTURE),
        (*RANKS, *CAPTURE),
    ],
    ids=["run", "microbench", "capture", "capture together"],
)
def test_a_command_that_measures_says_so(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ProcessorClock, "since", lambda self: BUSY)
    done = forked.command(command, tmp_path, {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(SAID) == 1
    document = json.loads(done.stdout)
    document = document.get("config", document)
    assert {key: document[key] for key in KEYS} == KEYS
    path = tmp_path / ("it/run.json" if (tmp_path / "it").is_dir() else "it.json")
    kept = json.loads(path.read_text())
    kept = kept.get("provenance") or kept["config"]
    assert {key: kept[key] for key in KEYS} == KEYS


def test_a_tuner_says_so_and_its_page_too() -> None:
    quiet = RoundDecision(0, "DistributedDataParallel(model)", "DistributedDataParallel(model)")
    assert quiet.notes() == []
    assert quiet.describe().other_work_processors is None
    busy = RoundDecision(0, quiet.present, quiet.kept, other_work=OtherWork(1.3, 2))
    assert busy.notes()[0].startswith(f"ddpexec.tuned: {SAID}")
    page = busy.describe()
    assert (page.other_work_processors, page.processors) == (1.3, 2)
