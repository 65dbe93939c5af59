"""What binds a step is what it would lose if that took no time, whatever the shares of its parts say."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from ddpsim import Calibration, Options, Prediction, load_topology
from ddpsim.planning.bound import bound_of, describe_bound
from ddpsim.planning.comparison_row import efficiency_of
from ddpsim.prediction.models import Model
from ddpsim.prediction.predict import predict
from ddpsim.simulation.ddp_costs import HOST_COSTS
from ddpsim.simulation.job import Job
from ddpsim.topology.link_rates import with_link_rate
from tests.profile import LARGE

FREE = 2e-9
NEAR = 5e-3
"""Share of the step by which what is lost may miss what a simulation shows: as far as ends of bands may."""
JOBS = list(
    product(
        ("resnet50", "bert-large", "gpt2-small@a100-amp-b8", "mlp", "vgg16"),
        ("dgx-1v", "dgx-a100", "dgx-b200", "p3.16xlarge", "4x1080ti-pcie"),
        (Options(), Options(accumulate=4), Options(scale_compute=0.1), Options(scale_host=5)),
    )
)
"""A hundred jobs, of which the small profile takes each model on each machine once, by another option each time."""
if not LARGE:
    JOBS = [JOBS[4 * place + (place + place // 5) % 4] for place in range(25)]


def at(name: str, machine: str, options: Options, calibration: Calibration | None = None) -> Prediction:
    topology = load_topology(machine)
    nodes = 1 if machine == "4x1080ti-pcie" else 2
    workload = Model.of(name).on(topology)
    return predict(
        Job(workload, topology, nodes=nodes, options=options, calibration=calibration),
        local_s=1.0,
        band=False,
    )


@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(4))
def test_jobs_are_bound_by_what_they_would_lose(part: int) -> None:
    """Predicted again by the options that everybody has: a device or a host that takes no time, no communication."""
    priors = Calibration.priors("nccl")
    hosts = {f"nccl.ddp.{name}": 0.0 for name in HOST_COSTS}
    free_host = priors.with_values({k: v for k, v in hosts.items() if k in priors.constants}, source="test")
    for name, machine, options in JOBS[part::4]:
        found = at(name, machine, options)
        bound = bound_of(found)
        without = {
            "computation": at(name, machine, replace(options, scale_compute=FREE)),
            "communication": at(name, machine, replace(options, comm="noop")),
            "host": at(name, machine, replace(options, scale_host=FREE), free_host),
        }
        lost = {by: max(0.0, found.iteration_s - each.iteration_s) for by, each in without.items()}
        assert bound.lost == pytest.approx(lost, abs=NEAR * found.iteration_s), (name, machine, options)
        assert bound.lost[bound.by] == max(bound.lost.values())


def test_a_host_bound_step_is_not_bound_by_its_gpu() -> None:
    """On a DGX B200 the step is as long whatever the GPU's speed, so that the host binds, though the GPU is busy."""
    found = [at("bert-large@b200-amp-b8", "dgx-b200", Options(scale_compute=factor)) for factor in (0.5, 0.8, 1.0, 1.2)]
    assert len({round(each.iteration_s, 9) for each in found}) == 1
    for each in found:
        bound = bound_of(each)
        assert bound.by == "host"
        assert bound.lost["computation"] < 1e-3 * each.iteration_s
        assert describe_bound(bound, each.workload) == "host (launch prior)"


def test_input_that_binds_is_named_and_has_a_band() -> None:
    topology = load_topology("dgx-a100")
    workload, options = Model.of("resnet50").on(topology), Options(input_stage="load=400ms,workers=2")
    found = predict(Job(workload, topology, options=options))
    free = predict(Job(workload, topology, options=Options()), band=False)
    bound = bound_of(found)
    assert (bound.by, bound.beside) == ("input", None)
    assert bound.lost["input"] == pytest.approx(found.iteration_s - free.iteration_s, rel=0.01)
    low_s, high_s = found.low_s, found.high_s
    assert low_s < 0.98 * found.iteration_s < 1.05 * found.iteration_s < high_s
    assert efficiency_of(found)[1:] == pytest.approx((1.0, 1.0), abs=1e-3)


def test_resources_that_hide_each_other_are_both_named() -> None:
    """A loader that is as slow as the device: neither saves anything by itself."""
    topology = load_topology("dgx-a100")
    workload = Model.of("resnet50").on(topology)
    alone_s = predict(Job(workload, topology, options=Options()), band=False).iteration_s
    options = Options(input_stage=f"load={1e3 * alone_s:.3f}ms,workers=1")
    found = predict(Job(workload, topology, options=options), band=False)
    bound = bound_of(found)
    assert {bound.by, bound.beside} == {"computation", "input"}
    assert max(bound.lost.values()) < 0.1 * found.iteration_s
    assert bound.together_s is not None
    assert bound.together_s > 0.5 * found.iteration_s
    assert describe_bound(bound, workload) in ("GPU and input", "input and GPU")


def test_a_rank_that_is_slow_is_lost_to() -> None:
    topology = load_topology("dgx-a100")
    workload = Model.of("resnet50").on(topology)
    found = predict(Job(workload, topology, options=Options(stragglers={2: 4.0})), band=False)
    even = predict(Job(workload, topology, options=Options()), band=False)
    bound = bound_of(found)
    assert bound.lost["rank"] == pytest.approx(found.iteration_s - even.iteration_s, rel=NEAR)
    assert "rank" in (bound.by, bound.beside)


def test_a_faster_network_is_worth_what_communication_loses_at_most() -> None:
    slow = at("mlp", "p3.16xlarge", Options())
    bound = bound_of(slow)
    assert bound.by == "communication"
    fast = predict(Job(slow.workload, with_link_rate(load_topology("p3.16xlarge"), "nic", 1e12), nodes=2), band=False)
    assert 0 < slow.iteration_s - fast.iteration_s <= bound.lost["communication"]
