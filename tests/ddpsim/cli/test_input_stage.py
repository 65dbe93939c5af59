"""`--input-stage` on the command line: the part it adds to every document of a step, and its refusals."""

from __future__ import annotations

import json

import pytest

from ddpsim.cli.app import run
from ddpsim.trace.metrics import INPUT, PARTS

JOB = ["--workload", "mlp", "--topology", "p3.8xlarge", "--json", "--workers", "1"]


def printed(capsys, *arguments):
    assert run([*arguments]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("command", ["plan", "compare"])
def test_rows_have_the_part_and_sum_to_the_step(capsys, command):
    [row] = printed(capsys, command, *JOB, "--input-stage", "copy=19MB")["rows"]
    assert row[INPUT] > 19e6 / 12e9
    assert sum(row[part] for part in (INPUT, *PARTS)) == pytest.approx(row["iteration_s"])
    [row] = printed(capsys, command, *JOB)["rows"]
    assert INPUT not in row


def test_a_prediction_says_it_in_words(capsys):
    job = ["predict", "--workload", "mlp", "--topology", "p3.8xlarge"]
    assert run([*job, "--input-stage", "load=1s,workers=2"]) == 0
    assert "waiting for the batch" in capsys.readouterr().out
    assert run(job) == 0
    assert "waiting for the batch" not in capsys.readouterr().out


def test_a_plan_s_table_has_a_column_of_it(capsys):
    job = ["plan", *JOB, "-v"]
    job.remove("--json")
    headers = []
    for stage in ([], ["--input-stage", "copy=19MB"]):
        assert run([*job, *stage]) == 0
        [parts] = [line for line in capsys.readouterr().out.splitlines() if "forward" in line]
        headers.append(parts.split())
    assert [name for name in headers[1] if name not in headers[0]] == ["input"]


@pytest.mark.parametrize(
    ("stage", "named"),
    [("load=12", "input_stage, load"), ("recorded", "no input stage recorded"), ("loud=3ms", "'loud=3ms'")],
)
def test_refusals_name_the_option_and_a_remedy(capsys, stage, named):
    assert run(["predict", "--workload", "mlp", "--topology", "p3.8xlarge", "--input-stage", stage]) == 2
    said = capsys.readouterr().err
    assert named in said
    assert "load=" in said or "write" in said
