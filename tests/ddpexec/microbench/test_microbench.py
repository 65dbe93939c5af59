import dataclasses
import json
import math

import pytest
import torch
import torch.distributed as dist

from ddpexec.groups.launched import Launched
from ddpexec.groups.process_groups import Communicator
from ddpexec.microbench.microbench import ComputingLoad, microbench
from ddpexec.microbench.under_load import computation_of, measure_slowdowns
from ddpsim.calibrating.measured import parse_table
from ddpsim.collectives.codec_priors import CODECS
from ddpsim.common.errors import InputError
from ddpsim.workload.files import load_workload
from tests.ddpexec.groups import ranks


def this_rank():
    return Launched(Communicator([dist.group.WORLD]), torch.device("cpu"), nodes=1)


def document_of(rank):
    together = [[1 << 16], [1 << 23, 1 << 23, 1 << 23]]
    return microbench(this_rank(), [64, 4096, 1 << 20], ComputingLoad(), together=together)


def slowdowns_of(rank):
    workload = dataclasses.replace(load_workload("mlp"), batch_size=1)
    compute = computation_of(workload, torch.device("cpu"))
    return dataclasses.asdict(measure_slowdowns(this_rank(), compute, seconds=0.1, rounds=1))


@pytest.fixture(scope="module")
def document():
    """Return what both of two ranks found."""
    document, other = ranks.run(2, document_of)
    assert document == other
    return document


@pytest.mark.needs("wait")
def test_the_document_is_one_that_calibration_reads(document):
    table = parse_table(json.dumps(document), "allreduce.json")
    assert (table.ranks, table.nodes) == (2, 1)
    assert [row.size_bytes for row in table.rows] == [64, 4096, 1 << 20]
    assert all(row.time_s > 0 for row in table.rows)
    assert {"hook_s", "launch_s", "copy_Bps", "finish_s"} <= set(table.ddp)
    for result in document["results"]:
        figures = result["out_of_place"]
        assert figures["nwrong"] == 0
        assert figures["alg_bw"] * figures["time"] * 1e3 == pytest.approx(result["size"], rel=1e-2)
        assert figures["bus_bw"] == figures["alg_bw"]  # 2 (n - 1) / n at two ranks
        assert result["count"] * 4 == result["size"]


@pytest.mark.needs("wait")
def test_every_cost_is_a_number_that_a_calibration_may_hold(document):
    costs = document["ddp"]
    # What a fit finds beside noise may be nothing, whatever the machine; what is timed by itself is not.
    assert all(math.isfinite(cost) and cost >= 0 for cost in costs.values()), costs
    assert {"hook_s", "launch_s", "finish_s", "broadcast_s", "pair_s", "behind_s", "unit_s"} <= set(costs)
    assert {"forward_s", "buffer_s", "search_s", "copy_slowdown", "step_slowdown"} <= set(costs)
    assert {f"{codec}_{part}" for codec in CODECS for part in ("kernel_s", "Bps")} <= set(costs)
    assert all(cost > 0 for name, cost in costs.items() if name.endswith("_Bps"))


def test_slowdowns_of_a_real_model_are_the_same_on_every_rank():
    slowdowns, other = ranks.run(2, slowdowns_of)
    assert slowdowns == other
    assert set(slowdowns) == {"compute_slowdown", "communication_slowdown", "shared_compute_slowdown"}
    assert all(factor > 0 for factor in slowdowns.values())


@pytest.mark.needs("wait")
def test_collectives_launched_at_once_are_measured_until_the_last_has_ended(document):
    one, three = document["together"]
    assert three["sizes"] == (1 << 23, 1 << 23, 1 << 23)
    assert min(one["time"], three["time"]) > 0


def test_a_workload_of_no_shipped_model_cannot_be_run():
    workload = dataclasses.replace(load_workload("mlp"), name="my.training@cpu-fp32-b2")
    with pytest.raises(InputError, match="is of no shipped model; give a workload of one"):
        computation_of(workload, torch.device("cpu"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "error: ddpexec microbench: RANK is not set; start it as `torchrun --standalone"),
        (["-b", "4MB"], "error: -b: size '4MB' is not one nccl-tests would take"),
        (["--under-load", "mpl"], "error: unknown workload 'mpl'; did you mean mlp"),
    ],
)
def test_the_command_ends_with_2_and_one_message(arguments, message, tmp_path, refusal, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    assert message in refusal("microbench", *arguments, "-o", tmp_path / "ar.json")
    assert not list(tmp_path.iterdir())
