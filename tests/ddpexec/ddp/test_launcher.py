"""The launcher: what it fills, sends, waits for and drains, in which order, and what it counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from ddpexec.ddp.comm_hooks import HookWork
from ddpexec.ddp.flat import FlatBucket
from ddpexec.ddp.launcher import Launcher, Sending
from ddpexec.errors import ExecutionError
from ddpexec.groups.process_groups import Communicator
from tests.ddpexec.groups import ranks


class Ended:
    """A work that says when it is waited for."""

    def __init__(self, name: str, log: list[str], error: RuntimeError | None = None) -> None:
        self.name, self._log, self._error = name, log, error

    def wait(self, timeout: Any = None) -> bool:
        self._log.append(f"wait {self.name}")
        if self._error is not None:
            raise self._error
        return True

    def is_completed(self) -> bool:
        return True


def launcher_of(log: list[str], error: RuntimeError | None = None) -> Launcher:
    made = Launcher(Communicator([torch.distributed.group.WORLD]))

    def sending(name: str, after: tuple[int, ...] = ()) -> Sending:
        def send(before: Sequence[Any]) -> Any:
            log.append(" ".join([f"send {name}", *(f"after {work.name}" for work in before)]))
            return Ended(name, log, error)

        fill, drain = (lambda: log.append(f"fill {name}")), (lambda: log.append(f"drain {name}"))
        return Sending(f"the allreduce {name!r}", (0,), 8, send, after=after, fill=fill, drain=drain)

    made.sendings = [sending("a"), sending("b", after=(0,))]
    return made


@ranks.on(1)
def test_a_message_is_filled_sent_waited_for_once_and_drained_and_a_failure_names_it(rank: int) -> None:
    log: list[str] = []
    made = launcher_of(log)
    made.launch([0, 1])
    made.launch([0])  # once more, before anybody has waited for the first
    made.wait([1, 1])
    made.wait_all()
    first = ["fill a", "send a", "fill b", "send b after a", "wait a", "drain a", "fill a", "send a"]
    assert log == [*first, "wait b", "drain b", "wait a", "drain a"]
    assert made.launched == [0, 1, 0]
    made.begin()
    assert (made.launched, made.flying) == ([], {})
    failing = launcher_of([], RuntimeError("gloo: Connection closed by peer"))
    failing.launch([0])
    with pytest.raises(RuntimeError, match="the allreduce 'a' failed"):
        failing.wait([0])


def test_what_a_hook_returns_of_complex_numbers_may_be_their_parts() -> None:
    parameter = torch.nn.Parameter(torch.zeros(3, dtype=torch.complex64))
    bucket = FlatBucket(0, (0,), [parameter], as_view=False, batched=False)
    future: Any = torch.futures.Future()
    future.set_result([torch.view_as_real(torch.full((3,), 1 + 2j, dtype=torch.complex64))])
    assert HookWork(future, bucket).wait()
    bucket.write_back(())
    assert parameter.grad.tolist() == [1 + 2j] * 3
    short: Any = torch.futures.Future()
    short.set_result(torch.zeros(2, dtype=torch.complex64))
    with pytest.raises(ExecutionError, match="holds 2 elements, the bucket 3"):
        HookWork(short, bucket).wait()
