"""Options that do not fit the workload they are given with."""

import pytest

from ddpsim import InputError, load_topology
from ddpsim.simulation import Options, simulate
from ddpsim.workload.replayed import single_clock
from tests.ddpsim.simulation.builders import workload

TIMED = single_clock(workload(device="V100"))


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
