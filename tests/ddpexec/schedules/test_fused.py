"""Fusion buffers, cycles and packs carried out: weights of one process, and buffers that wait for their cycle."""

from __future__ import annotations

import time
from typing import Any
from unittest import mock

import pytest

from tests.ddpexec.groups import ranks

torch = pytest.importorskip("torch")

from ddpexec.schedules import lanes  # noqa: E402
from tests.ddpexec.schedules.test_weights import trained  # noqa: E402
from tests.ddpexec.schedules.training import OPTIMIZERS, alone, apart, loss_of, mine, wrapped  # noqa: E402

SCHEMES = (
    "horovod:fusion=1KiB,cycle=2ms", "horovod", "multiworker-mirrored", "multiworker-mirrored:pack=1KiB",
)  # fmt: skip


@ranks.on(2, timeout_s=110)
def test_steps_end_with_the_weights_of_one_process(rank: int) -> None:
    found = {}
    for optimizer in OPTIMIZERS:
        expected = alone(optimizer, 2)[-1]
        for scheme in SCHEMES:
            for learn in (0, 3):
                name = f"{scheme} {optimizer} {learn}"
                found[name] = apart(trained(rank, scheme, optimizer, learn=learn), expected)
    assert {name: far for name, far in found.items() if far > 1e-10} == {}


@ranks.on(2)
def test_a_buffer_is_held_back_until_its_cycle(rank: int) -> None:
    # By message, for two are in flight, and on a busy machine the second may begin before the first.
    handed: dict[int, float] = {}
    began: dict[int, float] = {}
    launch, begin = lanes.CommunicationStream.launch, lanes.begin

    def launched(lane: Any, operation: Any, tensor: torch.Tensor, *arguments: Any, **named: Any) -> Any:
        handed[tensor.data_ptr()] = time.monotonic()
        return launch(lane, operation, tensor, *arguments, **named)

    def begun(group: Any, operation: Any, tensor: torch.Tensor) -> Any:
        began[tensor.data_ptr()] = time.monotonic()
        return begin(group, operation, tensor)

    with mock.patch.object(lanes.CommunicationStream, "launch", launched), mock.patch.object(lanes, "begin", begun):
        made = wrapped(rank, "horovod:cycle=30ms", learn=3)
        for number in range(5):
            made.optimizer.zero_grad()
            handed.clear()
            began.clear()
            loss_of(made, *mine(number, rank)).backward()
            made.optimizer.step()
    delays = [message.delay_s for message in made.schedule]
    assert delays
    for planned_s, (message, handed_s) in zip(delays, handed.items(), strict=True):
        assert planned_s > 0
        assert began[message] - handed_s >= planned_s
