"""Data-parallel training by any schedule: a module, its optimizer, and the messages between ranks."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from ddpexec.ddp.buffers import BufferSynchroniser
from ddpexec.ddp.gradient_hooks import hook_gradients, remove
from ddpexec.ddp.options import check_module
from ddpexec.ddp.parameters import ModelParameters, agree, broadcast_state, collect, verify
from ddpexec.errors import OptionError
from ddpexec.groups.lost import naming_the_lost
from ddpexec.groups.process_groups import Communicator
from ddpexec.schedules.carrier import Lanes
from ddpexec.schedules.executor import Executor
from ddpexec.schedules.forward_points import ForwardPoints
from ddpexec.schedules.updates import MakeOptimizer, ScheduledOptimizer
from ddpexec.timing.observe import Observer
from ddpsim.bucketing import BucketCaps, BucketPlan, rebuilt_plan
from ddpsim.schedules.named import Scheme, scheme_named
from ddpsim.schedules.schedule import Schedule, message_document
from ddpsim.schedules.schemes import without_overlap
from ddpsim.schedules.setup import Setup

MakeSchedule = Callable[[Setup], Schedule]


class ScheduledDataParallel(nn.Module):
    """Train `module` data parallel by a scheme.

    Step `optimizer` once an iteration (or once in `every`), after its backward. Between a step and the next forward
    weights may be behind; `state_dict` of this module, of the wrapped one and of the optimizer bring them up to date
    first, and so does `complete`.

    Args:
        module: dense gradients, on one device.
        scheme: its name, as `ddpsim.schedules.named.scheme_named` reads it, or a function from a setup to a schedule.
        make_optimizer: makes an optimizer of some parameters, or of a flat part of them where the scheme shards it; it
            is called for each group that is updated by itself.
        process_group: torch's; the default group where None.
        caps: of the buckets.
        plan: the buckets instead.
        overlap: whether messages may begin before backward has ended.
        every: of how many iterations the last one sends gradients.
        find_unused_parameters: whether parameters may have no gradient in an iteration.
        broadcast_buffers: whether rank 0's buffers are broadcast before a forward.
        comm: `noop` sends nothing after construction.
        observer: takes the moments of each iteration; None takes none.
        setup: changes what the scheme is told, such as when gradients come.

    Raises:
        PlanError: a schedule that cannot be carried out.
        ExecutionError: what cannot be carried out for real, or ranks that differ.
    """

    def __init__(
        self,
        module: nn.Module,
        scheme: str | Scheme,
        make_optimizer: MakeOptimizer,
        *,
        process_group: Any = None,
        caps: BucketCaps | None = None,
        plan: BucketPlan | None = None,
        overlap: bool = True,
        every: int = 1,
        find_unused_parameters: bool = False,
        broadcast_buffers: bool = True,
        comm: str = "real",
        observer: Observer | None = None,
        setup: Callable[[Setup], Setup] = lambda setup: setup,
    ) -> None:
        super().__init__()
        self.module, self.observer = module, observer
        group = process_group or torch.distributed.group.WORLD
        if group is None:
            raise OptionError("no process group", remedy="call torch.distributed.init_process_group first")
        self.communicator = Communicator([group], noop=comm == "noop")
        model = collect(module)
        check_module(list(model.tensors))
        _check_dense(model)
        self.model, self.device = model, model.tensors[0].device
        verify(model, self.communicator, self.device)
        broadcast_state(module, self.communicator, (), buffers=True)
        self.plan = plan or rebuilt_plan(model.policy, caps or BucketCaps())
        scheme = scheme_named(scheme) if isinstance(scheme, str) else scheme
        given = Setup(
            parameters=model.policy, buckets=self.plan.groups(), world_size=self.communicator.world_size, every=every
        )
        self.schedule = scheme.schedule(setup(given))
        if not overlap:
            self.schedule = without_overlap(self.schedule)
        check_agreement(self.schedule, self.communicator, self.device)
        self._lanes = Lanes(self.communicator)
        self.executor = Executor(
            self.schedule, model, self.communicator, self._lanes, make_optimizer,
            find_unused=find_unused_parameters, observer=observer,
        )  # fmt: skip
        self._points = ForwardPoints(module, model, self.executor.forward)
        self.optimizer = ScheduledOptimizer(
            self.executor.updates, self.executor.step, self.complete, self.executor.forget
        )
        self._synchroniser = BufferSynchroniser(module, self.communicator, ()) if broadcast_buffers else None
        self._local = False
        handles = [*hook_gradients(model, self.executor.gradient), *self._points.handles]
        handles.append(module.register_state_dict_pre_hook(self._before_state))  # type: ignore[no-untyped-call]
        handles.append(module.register_load_state_dict_pre_hook(self._before_state))  # type: ignore[no-untyped-call]
        weakref.finalize(self, _end, handles, self._lanes).atexit = False

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Call the module; what it needs of the last iteration comes in before."""
        observer = self.observer
        if not torch.is_grad_enabled():
            self.complete()
            return self.module(*inputs, **kwargs)
        if self._synchroniser is not None and not self._local:
            begin = observer.now() if observer is not None else None
            if self._synchroniser.synchronise() is not None and observer is not None:
                observer.buffers(begin)
        begin = observer.now() if observer is not None else None
        self.executor.begin(local=self._local)
        self.executor.forward(self._points.at_start)
        output = self.module(*inputs, **kwargs)
        self._points.learn()
        if observer is not None:
            observer.module(begin)
        return output

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Send nothing: gradients add up, and a step is taken with this rank's alone."""
        before, self._local = self._local, True
        try:
            yield
        finally:
            self._local = before

    def complete(self) -> None:
        """Carry out what is still to be carried out, so that the parameters are those after the last step."""
        self.executor.complete()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset the gradients of all parameters."""
        self.optimizer.zero_grad(set_to_none)

    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Scale all gradients so that their joint 2-norm is at most `max_norm`; return what it was.

        It needs all gradients, so it waits for all messages: a scheme that lets the next forward wait for each of them
        loses that. Every rank calls it, after backward and before the optimizer's step.
        """
        gradients = self.executor.gather_gradients()
        squares = torch.stack([gradient.norm() ** 2 for gradient in gradients]).sum()
        if self.schedule.sharding.optimizer > 1 and self.communicator.world_size > 1 and not self.communicator.noop:
            with naming_the_lost(self.communicator, "the sum of gradients' norms"):
                self.communicator.all_reduce(squares, 0).wait()
        norm = squares.sqrt()
        torch._foreach_mul_(gradients, (max_norm / (norm + 1e-6)).clamp(max=1.0))
        return norm

    def _before_state(self, *_: Any) -> None:
        self.complete()


def check_agreement(schedule: Schedule, communicator: Communicator, device: torch.device) -> None:
    """Raise on every rank unless all have the same schedule.

    Raises:
        ModelMismatchError: names the first rank that differs from rank 0, and its first message that does.
    """
    common = {"update": schedule.update, "sharding": asdict(schedule.sharding)}
    rows = [json.dumps({**message_document(message), **common}) for message in schedule]
    agree(rows, [f"message {number} ({message.id})" for number, message in enumerate(schedule)], communicator, device)


def _check_dense(model: ModelParameters) -> None:
    for parameter in model.policy:
        if parameter.sparse:
            raise OptionError(
                "its gradient is sparse", place=f"parameter {parameter.name}", remedy="use `scheme=ddp`, or a dense one"
            )


def _end(handles: list[Any], lanes: Lanes) -> None:
    remove(handles)
    lanes.close()
