from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ddpexec.capturing.describe import describe_buffers
from ddpexec.ddp.parameters import collect
from ddpexec.running.timed import TimedModel, gradient_value, make_timed_model
from ddpexec.timing.waiting import keep_time
from ddpsim.bucketing import Parameter
from ddpsim.bucketing.assign import FrozenParameter
from ddpsim.common.errors import WorkloadError
from ddpsim.workload import Buffer, Phase, Workload
from tests.ddpexec.small import small_workload

MS = 1e-3
NAMES = ("stem.weight", "layer.0.weight", "layer.0.bias", "layer.1.weight", "head.weight")


def workload(ready_ms: list[list[float]]) -> Workload:
    ready = np.array(ready_ms) * MS
    count = len(ready)
    shapes = [(8, 3), (4, 4), (4,), (5,), ()]
    return replace(
        small_workload(5),
        device="V100",
        parameters=tuple(Parameter(name, shape) for name, shape in zip(NAMES, shapes, strict=True)),
        buffers=(Buffer("stem.running", (3,)), Buffer("layer.1.count", (), "int64")),
        forward=Phase(np.full(count, 1 * MS), np.full(count, 2 * MS)),
        backward=Phase(np.full(count, 1 * MS), np.full(count, 6 * MS)),
        optimizer=Phase(np.full(count, 1 * MS), np.full(count, 0.5 * MS)),
        gradient_hook_s=ready / 10,
        gradient_ready_s=ready,
    )


@contextlib.contextmanager
def hooks_recorded(timed: TimedModel) -> Iterator[list[int]]:
    fired: list[int] = []
    handles = [
        parameter.register_post_accumulate_grad_hook(lambda _, index=index: fired.append(index))
        for index, parameter in enumerate(timed.model.module.parameters())
    ]
    yield fired
    for handle in handles:
        handle.remove()


def backward(timed: TimedModel) -> None:
    batch = timed.model.make_batch()
    timed.model.loss(timed.model.module(*batch.inputs), batch).backward()


class Kernels(TorchDispatchMode):
    """Notes what would be a kernel on a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        if not function.is_view:
            self.names.append(str(function))
        return function(*arguments, **(keywords or {}))


def test_a_forward_computes_nothing_whatever_its_layers() -> None:
    names = []
    for ready_ms in ([5, 4, 3, 2, 1], [5, 4, float("nan"), 2, 1]):
        timed = make_timed_model(workload([ready_ms]))
        batch = timed.model.make_batch()
        with Kernels() as kernels:
            timed.model.module(*batch.inputs)
        names.append(kernels.names)
    assert names[0] == names[1]


def test_parameters_and_buffers_are_the_recorded_ones() -> None:
    recorded = workload([[5, 4, 3, 2, 1]])
    module = make_timed_model(recorded).model.module
    assert collect(module).policy == recorded.parameters
    assert describe_buffers(module) == recorded.buffers


def test_hooks_fire_in_the_order_of_the_iteration_drawn_and_never_early() -> None:
    recorded = workload([[5, 4, 3, 2, 1], [5, 3, 4, 2, 1], [1, 2, 3, 4, 5]])
    timed = make_timed_model(recorded, seed=3)
    seen = set()
    with hooks_recorded(timed) as fired:
        for _ in range(20):
            backward(timed)
            seen.add(timed.replay.iteration)
            assert fired == recorded.arrival_order(timed.replay.iteration)
            assert (timed.replay.lateness_s > -1e-9).all()
            timed.optimizer.step()
            fired.clear()
    assert seen == {0, 1, 2}


def test_ranks_draw_different_iterations_and_seeds_repeat_them() -> None:
    recorded = workload([[5, 4, 3, 2, 1]] * 50)

    def drawn(rank: int, seed: int) -> list[int]:
        replay = make_timed_model(recorded, rank=rank, seed=seed).replay
        return [(replay.begin_iteration(), replay.iteration)[1] for _ in range(10)]

    assert drawn(0, 1) == drawn(0, 1)
    assert drawn(0, 1) != drawn(1, 1)
    assert drawn(0, 1) != drawn(0, 2)


def test_gradients_are_real_survive_what_ddp_does_to_them_and_accumulate() -> None:
    timed = make_timed_model(workload([[5, 4, 3, 2, 1]]))
    parameters = list(timed.model.module.parameters())
    expected = [torch.full_like(parameter, gradient_value(index)) for index, parameter in enumerate(parameters)]
    for _ in range(3):
        backward(timed)
        for parameter, value in zip(parameters, expected, strict=True):
            torch.testing.assert_close(parameter.grad, value, rtol=0, atol=0)
            assert parameter.grad is not None
            parameter.grad.mul_(0.25)
        timed.optimizer.step()
        assert all(parameter.grad is None for parameter in parameters)
    backward(timed)
    backward(timed)
    for parameter, value in zip(parameters, expected, strict=True):
        torch.testing.assert_close(parameter.grad, 2 * value, rtol=0, atol=0)


def test_a_gradients_memory_is_handed_over_not_copied() -> None:
    timed = make_timed_model(workload([[5, 4, 3, 2, 1]]))
    pointers = []
    for _ in range(3):
        backward(timed)
        pointers.append([parameter.grad.data_ptr() for parameter in timed.model.module.parameters()])
        timed.optimizer.step()
    assert pointers[0] == pointers[1] == pointers[2]


def test_a_parameter_without_a_gradient_gets_none() -> None:
    timed = make_timed_model(workload([[5, 4, float("nan"), 2, 1]]))
    backward(timed)
    missing = [False, False, True, False, False]
    assert [parameter.grad is None for parameter in timed.model.module.parameters()] == missing
    assert np.isnan(timed.replay.lateness_s).tolist() == missing


def test_one_clock_takes_the_longer_of_the_two_and_keeps_hook_order() -> None:
    recorded = workload([[5, 4, 3, 2, 1]])
    hooks = np.array([[0.9, 0.8, 0.1, 0.2, 0.3]]) * MS
    timed = make_timed_model(replace(recorded, gradient_hook_s=hooks), scale_compute=3.0).replay.workload
    assert timed.device_label == "timed V100"
    assert make_timed_model(replace(recorded, device="cpu")).replay.workload.device_label == "timed cpu"
    assert timed.gradient_ready_s[0] / MS == pytest.approx(np.array([5, 4, 3, 3, 3]) * 3.0)
    assert timed.forward.host_s / MS == pytest.approx(6.0)
    assert timed.backward.device_s / MS == pytest.approx(18.0)
    assert timed.optimizer.device_s / MS == pytest.approx(3.0)


def test_what_cannot_be_replayed_is_refused() -> None:
    recorded = workload([[5, 4, 3, 2, 1]])
    sparse = (replace(recorded.parameters[0], sparse=True), *recorded.parameters[1:])
    with pytest.raises(WorkloadError, match=r"stem\.weight is sparse"):
        make_timed_model(replace(recorded, parameters=sparse))
    shuffled = tuple(
        replace(p, name=name) for p, name in zip(recorded.parameters, ("a.x", "b", "a.y", "c", "d"), strict=True)
    )
    with pytest.raises(WorkloadError, match="module tree"):
        make_timed_model(replace(recorded, parameters=shuffled))


def test_late_gradients_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    timed = make_timed_model(workload([[50, 40, 30, 20, 10]]))
    late_s = iter([0.05e-3, 0.19e-3, 0.29e-3, 0.41e-3, 0.0])
    monkeypatch.setattr(timed.replay, "reach", lambda seconds: next(late_s, 0.0) if seconds >= 10 * MS else 0.0)
    for parameter in (4, 3, 2, 1, 0):
        timed.replay.reach_gradient(parameter)
    assert (timed.replay.late, timed.replay.gradients) == (1, 5)


def test_a_backward_counts_from_the_call_and_from_its_first_node_where_the_loss_is_another() -> None:
    timed = make_timed_model(workload([[50, 40, 30, 20, 10]]))
    batch = timed.model.make_batch()
    output = timed.model.module(*batch.inputs)
    loss = timed.model.loss(output, batch)
    called_s = timed.replay.start_s
    loss.backward()
    assert timed.replay.start_s == called_s
    timed.model.module(*batch.inputs).sum().backward()
    assert timed.replay.start_s > called_s + 0.05


def test_nothing_outruns_a_phase_and_no_priority_is_left_after_it() -> None:
    timed, policies = make_timed_model(workload([[5, 4, 3, 2, 1]])), []
    for parameter in timed.model.module.parameters():
        parameter.register_post_accumulate_grad_hook(lambda _: policies.append(os.sched_getscheduler(0)))
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        allowed = True
    except PermissionError:
        allowed = False
    finally:
        keep_time(on=False)
    backward(timed)
    timed.optimizer.step()
    assert policies == [os.SCHED_FIFO if allowed else os.SCHED_OTHER] * 5
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


def test_an_optimizer_in_another_thread_leaves_the_ranks_clock_alone() -> None:
    timed = make_timed_model(workload([[5, 4, 3, 2, 1]]))
    server = timed.make_optimizer(list(timed.model.module.parameters()))
    timed.replay.begin()
    since = timed.replay.start_s
    beside = threading.Thread(target=server.step)
    beside.start()
    beside.join()
    assert (timed.replay.start_s, timed.replay.running) == (since, True)
    timed.replay.end(0.0)


def test_frozen_parameters_are_registered_where_they_were_and_have_no_layer() -> None:
    found = workload([[1.0, 2.0, 3.0, 4.0, 5.0]])
    places = {"stem.base": 1, "layer.0.up": 3}
    frozen = tuple(FrozenParameter(name, (2, 2), "bfloat16", before=before) for name, before in places.items())
    timed = make_timed_model(replace(found, frozen=frozen))
    model = collect(timed.model.module)
    assert [(each.name, each.shape) for each in model.policy] == [(each.name, each.shape) for each in found.parameters]
    assert [(each.name, each.dtype, each.before) for each in model.frozen] == [
        (each.name, each.dtype, each.before) for each in frozen
    ]
    backward(timed)
    assert [each.grad is not None for each in (*model.tensors, *model.frozen_tensors)] == [True] * 5 + [False] * 2
