from __future__ import annotations

import numpy as np
import pytest

from ddpsim.workload.files import load_workload
from ddpsim.workload.kineto.workload import import_trace
from tests.ddpsim.workload.kineto_traces import Job, written
from tests.ddpsim.workload.test_kineto import HTA

KERNELS = [20.0, 80.0, 10.0]
OPERATOR_US = 20.0


class Numbered(Job):
    """After the convolution forward has an operator a parameter, the last registered first; `lost` have no number."""

    lost: tuple[int, ...] = ()
    thread: int = 1

    def host(self, name, start, duration, thread=1, category="cpu_op", **args):
        if name.endswith("evaluate_function: ConvBackward0"):
            args = {"Sequence number": self.undone, "Fwd thread id": self.thread if self.undone else 1}
            self.undone -= 1
        super().host(name, start, duration, thread, category, **args)

    def forward(self, now):
        now = super().forward(now)
        self.begun = []
        for number in range(len(self.kernels)):
            numbered = {} if number in self.lost else {"Sequence number": number, "Fwd thread id": 0}
            self.host("aten::mm", now, OPERATOR_US, **numbered)
            self.device("mm", now + 10, 30 * (number + 1))
            now += OPERATOR_US
        self.undone = len(self.kernels) - 1
        return now


def imported(tmp_path, job):
    return import_trace(written(tmp_path, job.document(steps=3)))


@pytest.mark.parametrize("ddp", [False, True])
def test_a_parameter_is_needed_when_the_operator_of_its_node_is_launched_and_begins(tmp_path, ddp):
    workload = imported(tmp_path, Numbered(KERNELS, recorded=True, ddp=ddp)).workload
    use = workload.forward_use_s
    # Registration is the reverse of arrival, and so the order of forward. The convolution takes 100 us of the host.
    assert use.host_s == pytest.approx(np.array([100, 120, 140]) / 1e6, abs=1e-9)
    # Its kernel takes 50 us from 5 us after its launch at 50; the others are launched 10 us into their operators.
    assert use.device_s == pytest.approx(np.array([60, 90, 150]) / 1e6, abs=1e-9)
    assert "sequence numbers" in workload.provenance["forward_use"]


def test_where_an_operator_is_not_in_forward_nothing_is_known(tmp_path):
    plain = imported(tmp_path, Job(KERNELS, recorded=True))
    assert not plain.workload.forward_use_known
    assert any("not known, all count as at the start: no operator has a sequence" in note for note in plain.notes)
    job = Numbered(KERNELS, recorded=True)
    job.lost = (1,)
    some = imported(tmp_path, job)
    assert not some.workload.forward_use_known
    assert any("1 of 3 gradients come from operators that are not in forward" in note for note in some.notes)


def test_numbers_of_another_thread_name_other_operators(tmp_path):
    job = Numbered(KERNELS, recorded=True)
    job.thread = 2
    assert any("1 of 3 gradients" in note for note in imported(tmp_path, job).notes)


def test_a_resnet_traced_under_ddp_on_real_gpus_needs_its_parameters_in_the_order_of_its_operators():
    model = load_workload("resnet50")
    workload = import_trace(HTA, model).workload
    readers = np.array(model.operators.forward_use)
    order = np.argsort(readers, kind="stable")
    for times in (workload.forward_use_s.host_s, workload.forward_use_s.device_s):
        assert (np.diff(times[order]) >= 0).all()
    different = np.diff(readers[order]) > 0
    assert (np.diff(workload.forward_use_s.host_s[order])[different] > 0).all()
    assert workload.forward_use_s.host_s.max() < workload.forward.host_s.min()
