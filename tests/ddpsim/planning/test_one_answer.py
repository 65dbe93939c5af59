"""Five questions with one right answer each, asked of every command that can answer: they agree to the digit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddpsim import BucketCaps, Options, compare, load_topology, load_workload, plan, predict, save_workload, sweep
from ddpsim.cli.app import run
from ddpsim.report import compare_report, plan_report

MACHINES = ("dgx-1v", "dgx-a100", "dgx-h100")
CAP = 25.0
DIGITS = 1e-9
"""Relative: to another order of sums."""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An H100's estimate, which knows its operators."""
    path = tmp_path_factory.mktemp("one") / "mine.json"
    save_workload(replace(load_workload("vgg16@H100"), name="mine"), path)
    return path


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same without its operators, and of no shipped name: nothing can estimate it for another GPU."""
    path = tmp_path_factory.mktemp("bare") / "bare.json"
    save_workload(replace(load_workload("vgg16@H100"), name="bare", operators=None), path)
    return path


def document(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    """Return what a command prints under --json."""
    capsys.readouterr()
    assert run([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def answers(capsys: pytest.CaptureFixture[str], asked: Path) -> dict[str, dict[str, dict[str, Any]]]:
    """Return by who answers, and by machine, the row of one node, of a cap for every bucket."""
    one = ("--workload", str(asked), "--nodes", "1", "--bucket-cap-mb", f"{CAP:g}")
    several = [word for machine in MACHINES for word in ("--topology", machine)]
    options = Options(caps=BucketCaps(bucket_cap_mb=CAP))
    workload, machines = load_workload(asked), [load_topology(name) for name in MACHINES]
    return {
        "predict": {name: document(capsys, "predict", *one, "--topology", name) for name in MACHINES},
        "sweep": {name: document(capsys, "sweep", *one, "--topology", name)["rows"][0] for name in MACHINES},
        "compare": {row["topology"]: row for row in document(capsys, "compare", *one, *several)["rows"]},
        "predict()": {
            machine.name: predict(workload, machine, nodes=1, options=options).document() for machine in machines
        },
        "sweep()": {
            machine.name: next(sweep(workload, machine, nodes=[1], caps=[options.caps])).document()
            for machine in machines
        },
        "compare()": {
            row.machine: row.document()
            for row in compare([str(asked)], list(MACHINES), nodes=[1], options=options).rows
        },
    }


KEYS = ("iteration_s", "step_s", "samples_per_s", "local_s", "exposed_comm_s", "compute_device", "pace_kept")


def test_what_a_step_takes_and_how_many_samples_that_is(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Questions one and two: a step on each machine, and its samples a second."""
    found = answers(capsys, file)
    for machine in MACHINES:
        right = found["predict"][machine]
        assert right["compute_device"] == load_topology(machine).compute_device
        for who, rows in found.items():
            for key in set(KEYS) & rows[machine].keys():
                same = right[key] if isinstance(right[key], str | bool) else pytest.approx(right[key], rel=DIGITS)
                assert rows[machine][key] == same, (who, machine, key)
    bound = {
        who: [rows[m]["bound_by"] for m in MACHINES] for who, rows in found.items() if "bound_by" in rows[MACHINES[0]]
    }
    assert {"predict", "compare", "compare()"} <= bound.keys()
    assert len({tuple(each) for each in bound.values()}) == 1


def test_where_most_samples_are_trained(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Question three: which machine is fastest, of plan, compare, their Python and their reports."""
    one = ("--workload", str(file), "--nodes", "1", "--bucket-cap-mb", f"{CAP:g}")
    several = [word for machine in MACHINES for word in ("--topology", machine)]
    planned, compared = (document(capsys, command, *one, *several) for command in ("plan", "compare"))
    report = plan(str(file), list(map(load_topology, MACHINES)), nodes=[1], caps=[BucketCaps(bucket_cap_mb=CAP)])
    found = compare([str(file)], list(MACHINES), nodes=[1])
    assert report.best is not None
    assert found.best is not None
    said = [
        planned["best"]["topology"],
        compared["best"]["topology"],
        report.best.chosen.topology.name,
        found.best.machine,
    ]
    assert said == ["dgx-h100"] * 4
    assert "1 node of dgx-h100" in plan_report([report]).verdict[0]
    assert "1 node of dgx-h100" in compare_report(found).verdict[0]
    by_machine = {row["topology"]: row["default_iteration_s"] for row in planned["rows"]}
    for row in found.rows:
        assert by_machine[row.machine] == pytest.approx(row.prediction.iteration_s, rel=DIGITS)


def test_what_cannot_be_estimated_is_not_ranked(bare: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Question four: the fastest of machines of which one alone has the workload's own GPU."""
    one = ("--workload", str(bare), "--nodes", "1", "--bucket-cap-mb", f"{CAP:g}")
    several = [word for machine in MACHINES for word in ("--topology", machine)]
    for command in ("plan", "compare"):
        got = document(capsys, command, *one, *several)
        kept = {row["topology"]: row["pace_kept"] for row in got["rows"]}
        assert kept == {"dgx-1v": True, "dgx-a100": True, "dgx-h100": False}
        assert got["best"]["topology"] == "dgx-h100"
        assert run([command, *one, *several]) == 0
        text = capsys.readouterr().out
        assert "not ranked: " in text
        assert "its compute times are of H100, it has V100" in text
    found = compare([str(bare)], list(MACHINES[:2]), nodes=[1])
    assert found.best is None
    assert "no machine is ranked" in compare_report(found).verdict[0]
    report = plan(str(bare), list(map(load_topology, MACHINES[:2])), nodes=[1], caps=[BucketCaps(bucket_cap_mb=CAP)])
    assert report.best is None
    assert report.document()["best"] is None


@pytest.mark.parametrize("command", ["predict", "sweep", "plan", "compare"])
def test_a_pace_that_is_to_be_kept_is_kept_everywhere(
    command: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Question five: what the H100's step would take on the wires of a DGX A100."""
    words = (command, "--workload", str(file), "--topology", "dgx-a100", "--nodes", "1", "--bucket-cap-mb", f"{CAP:g}")
    found = document(capsys, *words, "--keep-pace")
    row = found["rows"][0] if "rows" in found else found
    options = Options(caps=BucketCaps(bucket_cap_mb=CAP), keep_pace=True)
    right = predict(str(file), load_topology("dgx-a100"), nodes=1, options=options)
    assert (row["compute_device"], row["pace_kept"]) == ("H100", True)
    given = "default_iteration_s" if command == "plan" else "iteration_s"
    wanted = right.iteration_s
    if command == "plan":
        wanted = predict(str(file), load_topology("dgx-a100"), nodes=1, options=Options(keep_pace=True)).iteration_s
    assert row[given] == pytest.approx(wanted, rel=DIGITS)
    assert found.get("best") is None
    named = document(capsys, command, "--workload", f"{file}@recorded", *words[3:])
    assert (named["rows"][0] if "rows" in named else named)[given] == pytest.approx(wanted, rel=DIGITS)
