import pytest

from ddpsim import BucketCaps, Options, load_topology, load_workload
from ddpsim.planning.savings import WHERE, savings
from ddpsim.prediction.predict import predict
from ddpsim.simulation.ddp_costs import remove_overlap_costs
from ddpsim.simulation.job import Job


def step(machine, calibration=None, **caps):
    options = Options(caps=BucketCaps(**caps))
    source, topology = load_workload("bert-large"), load_topology(machine)
    return predict(Job(source, topology, nodes=2, options=options, calibration=calibration), band=False)


@pytest.mark.parametrize("machine", ["p3.16xlarge", "dgx-1v"])
@pytest.mark.parametrize("cap", [5.0, 100.0])
def test_the_parts_sum_to_the_difference_of_the_steps(machine, cap):
    default, other = step(machine), step(machine, bucket_cap_mb=cap)
    found = savings(default, other)
    assert {each.where for each in found} == set(WHERE)
    assert sum(each.seconds for each in found) == pytest.approx(default.iteration_s - other.iteration_s, abs=1e-9)
    sizes = [abs(each.seconds) for each in found]
    assert sizes == sorted(sizes, reverse=True)


def test_one_bucket_saves_launches_and_loses_by_the_bytes_of_its_last():
    """All gradients in one bucket overlap with nothing: what that costs are the bytes left after the last gradient."""
    free = remove_overlap_costs("nccl", None)
    default, one = step("dgx-1v", free), step("dgx-1v", free, bucket_cap_mb=10_000.0)
    parts = {each.where: each.seconds for each in savings(default, one)}
    assert min(parts, key=parts.get) == "last_bucket"
    assert parts["last_bucket"] < 0
    assert parts["last_bucket"] == pytest.approx(default.iteration_s - one.iteration_s, rel=0.5)
