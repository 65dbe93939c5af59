from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import typer

from ddpexec.__main__ import app as ddpexec
from ddpexec.lab.demo import planned, real
from ddpexec.lab.demo.output import RANKS, Commands
from ddpsim.cli.app import whole_command as ddpsim
from ddpsim.common import shipped
from ddpsim.common.files import json_text
from ddpsim.planning.validate import ComparedRatio
from ddpsim.workload.files import save_workload
from tests.ddpsim.simulation.builders import workload as small

Called = list[list[str]]
TABLE = {
    "config": {"ranks": RANKS, "nodes": 1, "backend": "gloo", "device": "cpu"},
    "results": [
        {"size": size, "in_place": {"time": 200 + size / 120}, "out_of_place": {"time": 200 + size / 120}}
        for size in (1 << 16, 1 << 20, 1 << 24)
    ],
    "ddp": {"hook_s": 1e-5, "compute_slowdown": 1.5},
}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Called, dict[str, Any], Path]:
    """The commands of the second half, none of which ran, and what it makes of runs that are as predicted."""
    found: Called = []
    out = tmp_path_factory.mktemp("demo")

    def torchrun(commands: Commands, *arguments: object) -> str:
        words = [str(argument) for argument in arguments]
        found.append(words)
        if words[0] == "capture":
            save_workload(small(iterations=3), words[-1])
        elif words[0] == "microbench":
            Path(words[-1]).write_text(json_text(TABLE))
        else:
            for cap in real.CAPS_MB:
                folder = Path(words[-1])
                shutil.copytree(folder / f"predicted-{cap}", folder / f"cap-{cap}")
                run = folder / f"cap-{cap}" / "run.json"
                document = json.loads(run.read_text())
                ratio = 1.5 if "--model" in words else 1.2
                local_s = json.loads((folder / f"predicted-{cap}.json").read_text())["local_s"]
                document["provenance"]["turns"] = [{"local_s": local_s, "step_s": local_s * ratio}] * 4
                document["provenance"]["local_s"] = local_s
                run.write_text(json_text(document))
        return ""

    with mock.patch.object(Commands, "torchrun", torchrun):
        document = real.hold_against_a_real_run(out, Commands(out / "commands.txt"))
    return found, document, out


def test_every_command_of_the_demo_has_the_options_it_is_given(ran: Any) -> None:
    group: Any = typer.main.get_command(ddpexec())
    for words in ran[0]:
        group.commands[words[0]].make_context(words[0], words[1:])
    assert [words[0] for words in ran[0]] == ["capture", "microbench", "run", "run", "run"]


def test_the_demo_stays_on_the_processor_where_there_is_a_gpu_too(ran: Any) -> None:
    capture, *ranks = (" ".join(words) for words in ran[0])
    assert "--device cpu" in capture
    assert all("--backend gloo" in line and f"--send-rate {real.RATE}" in line for line in ranks)


def test_runs_that_are_as_predicted_have_no_error_and_each_row_its_keys(ran: Any) -> None:
    document, out = ran[1], ran[2]
    assert [row["bucket_cap_mb"] for row in document["timed"]] == [*real.CAPS_MB] * 2
    assert max(abs(row["step_error"]) for row in document["timed"]) < 1e-9
    computed = document["computed"]
    assert computed["concluded"] is True
    for row, cap in zip(computed["rows"], real.CAPS_MB, strict=True):
        predicted = json.loads((out / "computed" / f"predicted-{cap}.json").read_text())
        assert row["predicted_ratio"] == predicted["iteration_s"] / predicted["local_s"]
        assert row["ratio"] == pytest.approx(1.5)
    assert (out / "timeline.png").stat().st_size > 0
    assert (out / "validation.png").stat().st_size > 0


def test_layers_that_compute_nothing_are_predicted_without_what_computing_costs_communication(ran: Any) -> None:
    quiet = json.loads((ran[2] / "calibration-quiet.json").read_text())
    loaded = json.loads((ran[2] / "calibration.json").read_text())
    slowdowns = [
        next(each["value"] for each in file["constants"] if each["name"] == "gloo.ddp.compute_slowdown")
        for file in (quiet, loaded)
    ]
    assert slowdowns == [1.0, 1.5]


def test_a_machine_that_varies_by_more_than_communication_costs_is_told_apart() -> None:
    def row(*ratios: float) -> Any:
        return mock.Mock(bucket_cap_mb=5, result=mock.Mock(ratio=ComparedRatio.of(ratios, 1.4)))

    assert real.find_doubt([row(1.4, 1.42, 1.41)]) == ""
    assert "Nothing can be concluded" in real.find_doubt([row(1.4, 1.42, 1.41), row(0.8, 1.9, 1.2)])


def test_a_machine_that_changed_its_pace_since_the_capture_is_told_apart() -> None:
    """By a ratio of 2, half of the pace's change is the ratio's."""

    def row(drift: float) -> Any:
        return mock.Mock(bucket_cap_mb=5, result=mock.Mock(ratio=ComparedRatio.of([2.0] * 4, 1.9, drift)))

    assert real.find_doubt([row(0.09), row(-0.09)]) == ""
    assert "moves the predicted ratio by -5.5 %" in real.find_doubt([row(0.11)])


def test_the_replayed_iteration_is_the_middle_one() -> None:
    recorded = small(iterations=5, jitter=0.3, seed=1)
    backwards = sorted(recorded.backward.device_s)
    assert list(real.middle_iteration(recorded).backward.device_s) == [backwards[2]]


def test_every_machine_and_workload_of_the_demo_is_shipped() -> None:
    workloads = {
        f"{model}@{of}-b{batch}" for model, batch in planned.MODELS.items() for of in planned.MACHINES.values()
    }
    assert workloads <= set(shipped.names("workload"))
    assert set(planned.MACHINES) <= set(shipped.names("topology"))


def test_what_comes_next_are_commands_that_there_are() -> None:
    group: Any = typer.main.get_command(ddpexec())
    names = {*group.commands, *ddpsim().commands}  # type: ignore[attr-defined]
    lines = real.NEXT.splitlines()
    assert len(lines) == 3
    assert all(names & set(line.split()) for line in lines)
