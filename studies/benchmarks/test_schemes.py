from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from ddpexec.lab.campaign.campaign import options
from ddpexec.lab.campaign.spec import network_topology
from ddpexec.lab.campaign.stages import stretch_workload, wire_s
from ddpsim.prediction.predict import predict
from ddpsim.simulation.job import Job
from ddpsim.workload.files import load_workload
from studies.benchmarks.schemes import gain, parsed, written


def test_the_gap_to_torch_is_predicted_for_the_layers_that_are_run(tmp_path: Path) -> None:
    asked = ["--out", str(tmp_path), "--ranks", "2", "--ratios", "1.5", "--caps", "4", "--schemes", "priority"]
    default, capped, scheduled = written(parsed(asked)).configurations
    workload = stretch_workload(default, load_workload(str(default.run.workload)))
    backward_s = float(workload.backward.device_s.mean())
    assert wire_s(default, workload) / backward_s == pytest.approx(1.5)
    assert float(workload.forward.device_s.mean()) == pytest.approx(backward_s / 2)
    place = network_topology("ranks2", default.network)
    steps = [
        predict(Job(workload, place, options=options(each))).summary.iteration_s
        for each in (default, capped, scheduled)
    ]
    assert steps == sorted(steps, reverse=True)
    # One link, in order, against urgent first: the step is never shorter than forward and the wire, or backward.
    assert backward_s * 1.5 < steps[2] < steps[0]


def test_a_gain_without_noise_has_no_interval() -> None:
    assert gain([1.2] * 5, [1.0] * 5) == "1.20 [1.20, 1.20]"
