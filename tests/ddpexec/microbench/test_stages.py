from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from ddpexec.groups.launched import Launched
from ddpexec.groups.process_groups import Communicator
from ddpexec.microbench.microbench import ComputingLoad, Stages, forget, measure_allreduce, microbench, part_of
from ddpsim.common.errors import InputError
from tests.ddpexec.groups import ranks

SIZES = [64, 4096]


def stopped(rank: int, path: str) -> list[str]:
    """Measure, be stopped in the third round, and measure again; return what either told."""
    launched = Launched(Communicator([dist.group.WORLD]), torch.device("cpu"), nodes=1)
    told: list[str] = []

    def stop(line: str) -> None:
        told.append(line)
        if "round 3" in line:
            raise KeyboardInterrupt

    asked = {"sizes": SIZES}
    for progress in (stop, told.append):
        try:
            stages = Stages(launched.communicator, Path(path), asked, progress)
            measure_allreduce(launched, SIZES, progress, stages)
        except KeyboardInterrupt:
            told.append("stopped")
    return told


def test_a_measurement_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    told, _ = ranks.run(2, stopped, str(tmp_path / "a.json"))
    after = told[told.index("stopped") + 1 :]
    assert after[0] == f"goes on after 3 stages of {tmp_path}/a.json.part"
    kept = json.loads((tmp_path / "a.json.part").read_text())["stages"]
    assert list(kept) == ["first", *(f"round {n} of 5" for n in range(1, 6))]
    assert all(len(kept[f"round {n} of 5"]) == len(SIZES) for n in range(1, 6))


def alone() -> Communicator:
    return Communicator([dist.group.WORLD])


@pytest.mark.usefixtures("one_rank")
def test_a_stage_that_is_done_is_not_done_again(tmp_path: Path) -> None:
    path, lines = tmp_path / "a.json", list[str]()
    first = Stages(alone(), path, {"sizes": (1, 2)}, lines.append)
    assert first.do("one", lambda: [1.0]) == [1.0]
    again = Stages(alone(), path, {"sizes": [1, 2]}, lines.append)
    assert again.do("one", lambda: pytest.fail("done again")) == [1.0]
    assert lines == [f"goes on after 1 stages of {path}.part"]


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("kept", ["", "{", "[]", '{"asked": {}}', '{"asked": {"sizes": [3]}, "stages": {"one": 7}}'])
def test_what_was_kept_for_something_else_is_begun_anew(tmp_path: Path, kept: str) -> None:
    path, lines = tmp_path / "a.json", list[str]()
    part_of(path).write_text(kept)
    assert Stages(alone(), path, {"sizes": [1]}, lines.append).do("one", lambda: 1) == 1
    assert lines == [f"begins anew: {path}.part was kept for something else"]


@pytest.mark.usefixtures("one_rank")
@pytest.mark.timeout(60)
def test_a_link_or_a_pipe_where_stages_are_kept_is_not_followed(tmp_path: Path) -> None:
    path, victim = tmp_path / "a.json", tmp_path / "victim"
    victim.write_text('{"asked": {}, "stages": {"one": 1}}')
    part_of(path).symlink_to(victim)
    with pytest.raises(InputError, match=r"a.json.part: cannot be read: it is a symbolic link"):
        Stages(alone(), path)
    part_of(path).unlink()
    os.mkfifo(part_of(path))
    with pytest.raises(InputError, match=r"a.json.part: cannot be read: it is no regular file"):
        Stages(alone(), path)
    part_of(path).unlink()
    stages = Stages(alone(), path)
    part_of(path).symlink_to(victim)
    stages.do("two", lambda: 2)
    assert victim.read_text() == '{"asked": {}, "stages": {"one": 1}}'
    assert not part_of(path).is_symlink()


def refused(rank: int, path: Path) -> str:
    with pytest.raises(InputError) as error:
        Stages(Communicator([dist.group.WORLD]), path)
    return str(error.value)


def test_every_rank_refuses_such_a_link(tmp_path: Path) -> None:
    part_of(tmp_path / "a.json").symlink_to(tmp_path / "victim")
    first, second = ranks.run(2, refused, tmp_path / "a.json")
    assert first == second


@pytest.mark.usefixtures("one_rank")
def test_nothing_is_left_of_a_whole_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    costs: dict[str, Any] = {"hook_s": 1e-6}
    monkeypatch.setattr("ddpexec.microbench.microbench.measure_costs", lambda _: costs)
    launched, path = Launched(alone(), torch.device("cpu"), nodes=1), tmp_path / "a.json"
    document = microbench(launched, SIZES, ComputingLoad(), keep=path)
    assert document["ddp"] == costs
    assert part_of(path).is_file()
    forget(path, launched)
    assert list(tmp_path.iterdir()) == []
