"""Options that do not fit each other, or the workload they are given with."""

import pytest

from ddpsim import InputError, load_topology
from ddpsim.collectives.calibration import Calibration
from ddpsim.simulation.engine import simulate
from ddpsim.simulation.jobs.pipeline import parse_pipeline
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.workload.replayed import single_clock
from tests.ddpsim.simulation.builders import workload

TIMED = single_clock(workload(device="V100"))
STAGES = parse_pipeline("1f1b:2,micro-batches=4", "pipeline")
DROP = {"layer": 0.5}
OF_DDP = {
    "compression": "fp16", "drop": DROP, "order": "once", "find_unused_parameters": True, "process_groups": 2,
}  # fmt: skip
"""What no other scheme has."""


@pytest.mark.parametrize(
    "given",
    [
        *({"scheme": "flat", name: value} for name, value in OF_DDP.items()),
        *({"overlap": "off", name: value} for name, value in OF_DDP.items()),
        {"tensor_parallel": 2, "compression": "fp16"},
        {"tensor_parallel": 2, "process_groups": 2},
        {"tensor_parallel": 2, "find_unused_parameters": True},
        {"expert_parallel": 2, "compression": "fp16"},
        {"expert_parallel": 2, "tensor_parallel": 2},
        {"pipeline": STAGES, "accumulate": 2},
        {"pipeline": STAGES, "expert_parallel": 2},
        {"pipeline": STAGES, "compression": "fp16"},
        {"pipeline": STAGES, "fidelity": "steps"},
    ],
    ids=str,
)
def test_what_does_not_go_together_is_refused_by_both_names(given):
    with pytest.raises(InputError, match="are both given") as refused:
        Options(**given)
    assert all(f"`{name}" in str(refused.value) for name in given)


@pytest.mark.parametrize(
    ("buckets", "other"),
    [
        ("aligned", {"order": "once"}),
        ("aligned", {"assignment": "initial"}),
        ("remapped", {"gradient_as_bucket_view": True}),
    ],
)
def test_buckets_of_what_is_dropped_are_one_way_of_making_them(buckets, other):
    [name] = other
    with pytest.raises(InputError, match=f"`drop_buckets={buckets}` and `{name}.*are both given"):
        Options(drop=DROP, drop_buckets=buckets, **other)


@pytest.mark.parametrize(
    ("source", "given", "message"),
    [
        (workload(), {"backend": "nccl"}, "backend: NCCL needs GPUs, small computes on a CPU; use gloo"),
        (workload(), {"scale_host": 0.5}, "scale_host: small has no host time .* on cpu; use `scale_compute`"),
        (TIMED, {"scale_host": 2.0}, "scale_host: small has no host time .* on timed V100"),
    ],
)
def test_what_a_workload_cannot_be_run_with_is_refused(source, given, message):
    with pytest.raises(InputError, match=message):
        simulate(source, load_topology("dgx-1v").place(), Options(**given))


def test_a_gpus_host_may_be_scaled():
    source, here = workload(device="V100", host_share=1.0), load_topology("dgx-1v").place(1, 2)
    slow, fast = (simulate(source, here, Options(scale_host=factor)).iterations[-1] for factor in (2.0, 1.0))
    assert slow.iteration_s > 1.5 * fast.iteration_s


def test_a_slower_host_is_slower_in_what_ddp_costs_it_too() -> None:
    """With nothing else to do, a step whose host takes twice as long takes twice as long: hooks, launches and all."""
    source, here = workload(device="V100", host_share=1.0, size=10), load_topology("dgx-1v").place(1, 2)
    free = {"scale_compute": 1e-9, "comm": "noop"}
    once, twice = (simulate(source, here, Options(scale_host=factor, **free)).iterations[-1] for factor in (1.0, 2.0))
    assert twice.iteration_s == pytest.approx(2 * once.iteration_s, rel=1e-3)
    dear = Calibration.priors("nccl").with_values({"nccl.ddp.hook_s": 1e-2}, source="test")
    once, twice = (
        simulate(source, here, Options(scale_host=factor, **free), dear).iterations[-1] for factor in (1.0, 2.0)
    )
    assert once.iteration_s > 1e-2 * len(source.parameters)
    assert twice.iteration_s == pytest.approx(2 * once.iteration_s, rel=1e-3)
