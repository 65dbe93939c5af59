"""The README's table of predictions is what is predicted today."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ddpexec.lab.demo.planned import MACHINES
from ddpsim.bucketing import BucketCaps
from ddpsim.planning.bound import bound_of, describe_bound
from ddpsim.prediction.named import predict
from ddpsim.prediction.prediction import Prediction
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.topology.spec import load_topology

TABLE = re.findall(r"^\| \d+ x .*$", (Path(__file__).parent.parent / "README.md").read_text(), re.MULTILINE)


@pytest.mark.parametrize("row", TABLE)
def test_the_table_is_what_is_predicted_today(row: str) -> None:
    where, gpus, buckets, *figures, binding = (cell.strip() for cell in row.strip("|").split("|"))
    nodes, _, machine = where.partition(" x ")
    found, default = (of_bert(machine, int(nodes), each) for each in (caps(buckets), BucketCaps()))
    times = (f"{seconds * 1e3:.0f}" for seconds in (found.summary.iteration_s, found.summary.exposed_comm_s))
    gain = "" if buckets == "torch's default" else f"{100 * (1 - found.iteration_s / default.iteration_s):.1f} %"
    assert [gpus, *figures] == [
        str(found.placement.world_size), *times, f"{100 * found.scaling_efficiency:.0f} %", gain
    ]  # fmt: skip
    assert binding == describe_bound(bound_of(found), found.workload)


def of_bert(machine: str, nodes: int, buckets: BucketCaps) -> Prediction:
    name = f"bert-large@{MACHINES[machine]}-b8"
    return predict(name, load_topology(machine), nodes=nodes, options=Options(caps=buckets))


def caps(buckets: str) -> BucketCaps:
    name, _, value = buckets.strip("`").partition("=")
    if not value:
        return BucketCaps()
    numbers = tuple(float(each) for each in value.strip("[]").split(","))
    return BucketCaps(**{name: numbers if name.endswith("_list") else numbers[0]})
