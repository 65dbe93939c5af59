"""`--input-stage` on the command line: the part it adds to every document of a step, and its refusals."""

from __future__ import annotations

import pytest

from ddpsim.trace.metrics import INPUT, PARTS

JOB = ["--workload", "mlp", "--topology", "p3.8xlarge", "--json", "--workers", "1"]


@pytest.mark.parametrize("command", ["plan", "compare"])
def test_rows_have_the_part_and_sum_to_the_step(ddpsim, command):
    [row] = ddpsim(command, *JOB, "--input-stage", "copy=19MB").document["rows"]
    assert row[INPUT] > 19e6 / 12e9
    assert sum(row[part] for part in (INPUT, *PARTS)) == pytest.approx(row["iteration_s"])
    [row] = ddpsim(command, *JOB).document["rows"]
    assert INPUT not in row


def test_a_prediction_says_it_in_words(ddpsim):
    job = ["predict", "--workload", "mlp", "--topology", "p3.8xlarge"]
    assert "waiting for the batch" in ddpsim(*job, "--input-stage", "load=1s,workers=2").out
    assert "waiting for the batch" not in ddpsim(*job).out


@pytest.mark.parametrize(
    ("stage", "named"),
    [("load=12", "input_stage, load"), ("recorded", "no input stage recorded"), ("loud=3ms", "'loud=3ms'")],
)
def test_refusals_name_the_option_and_a_remedy(ddpsim, stage, named):
    refused = ddpsim("predict", "--workload", "mlp", "--topology", "p3.8xlarge", "--input-stage", stage)
    refused.refused(named)
    assert "load=" in refused.err or "write" in refused.err
