"""The part of a wrapper that serves schemes: the schedule in force, its optimizer, learned times, and servers.

`_install` puts a schedule in force, `_learn` replaces the first one once times are learned; `close` and `end` take
everything down in an order that leaves no rank waiting.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ddpexec.ddp.bucket_schedule import BucketSchedule
from ddpexec.ddp.buckets import ReducerOptions
from ddpexec.ddp.executor import Executor
from ddpexec.ddp.hooks import ForwardPoints, remove
from ddpexec.ddp.lanes import CommunicationStreams
from ddpexec.ddp.mixed import MixedPrecision
from ddpexec.ddp.parameter_servers import Server, ServerStatistics
from ddpexec.ddp.parameters import ModelParameters
from ddpexec.ddp.planner import ProbeTimes, SchedulePlanner, check_agreement
from ddpexec.ddp.scheme_schedule import Kept, SchemeSchedule
from ddpexec.ddp.stepper import ScheduledOptimizer
from ddpexec.ddp.updates import ParameterUpdate, clip_gradients, move_state
from ddpexec.errors import OptionError
from ddpexec.groups.process_groups import Communicator
from ddpexec.timing.observe import Observer
from ddpsim.bucketing import BucketCaps, BucketPlan
from ddpsim.common.operation import Operation
from ddpsim.schedules.schedule import Schedule


class ScheduledModule(nn.Module):
    """Wraps a module that is trained by the schedule of a scheme, or by DDP's buckets, which are a scheme's too.

    Args:
        module: that is wrapped.
        communicator: of the ranks.

    Attributes:
        device: of the first parameter.
        mixed: lowers the parameters' precision in an iteration; None leaves it.
        require_backward_grad_sync: whether the coming iteration's gradients are reduced.
        reducer: the schedule in force, with its memory.
        executor: carries the schedule in force out.
        schedule: of the scheme, in force; None where DDP's buckets are, which change between iterations.
        optimizer: what a user steps, of a scheme; None where the user has one of his own.
        observer: takes the moments of each iteration; None takes none.
    """

    module: nn.Module
    device: torch.device
    mixed: MixedPrecision | None
    reducer: Any
    executor: Executor
    schedule: Schedule | None
    optimizer: ScheduledOptimizer | None
    observer: Observer | None
    find_unused_parameters: bool
    static_graph: bool
    _options: ReducerOptions
    _planner: SchedulePlanner | None
    _learning: ProbeTimes | None

    def __init__(self, module: nn.Module, communicator: Communicator) -> None:
        nn.Module.__init__(self)
        self.module, self.communicator, self.process_group = module, communicator, communicator.main
        self.require_backward_grad_sync = True

    def _start(self, planner: SchedulePlanner | None, learn: int = 0) -> None:
        """Begin with nothing in force."""
        self._planner, self.schedule, self.optimizer = planner, None, None
        self._learning = ProbeTimes(len(planner.model.tensors), learn) if planner is not None and learn else None
        self._lanes = None if planner is None else CommunicationStreams(self.communicator)
        self._handles: dict[str, list[RemovableHandle]] = {}
        self._points: ForwardPoints | None = None
        self._serving: Server | None = None
        self._beside: Future[ServerStatistics] | None = None
        # Hooks hold the executor, its memory and its graph: they go with this module, as torch's do.
        self._release = weakref.finalize(self, _release, self._handles, self._lanes)
        self._release.atexit = False

    @property
    def model(self) -> ModelParameters:
        """The parameters that are trained, in registration order."""
        parameters: ModelParameters = self.reducer.model
        return parameters

    @property
    def caps(self) -> BucketCaps:
        """The caps of the buckets."""
        return self._options.caps

    @property
    def plan(self) -> BucketPlan:
        """The buckets in force."""
        buckets: BucketPlan = self.reducer.plan
        return buckets

    @property
    def learns(self) -> bool:
        """Whether it still trains as by DDP, to learn when gradients come."""
        return self._learning is not None

    @property
    def wire(self) -> Callable[[Operation, int], float] | None:
        """What a message takes, as probed when times were learned; None before."""
        return None if self._planner is None else self._planner.wire

    # ---- training

    def complete(self) -> None:
        """Carry out what is still to be carried out, so that the parameters are those after the last step."""
        self.reducer.complete()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset the gradients of all parameters."""
        if self.optimizer is None:
            super().zero_grad(set_to_none)
        else:
            self.optimizer.zero_grad(set_to_none)

    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Scale all gradients so that their joint 2-norm is at most `max_norm`; return what it was.

        It needs all gradients, so it waits for all messages: a scheme that lets the next forward wait for each of them
        loses that. Every rank calls it, after backward and before the optimizer's step.
        """
        if self.schedule is None:
            return nn.utils.clip_grad_norm_(self.model.tensors, max_norm)
        if self.schedule.sharding.hosts:
            what = "gradients have left for the servers when they could be clipped"
            raise OptionError(what, place=f"scheme {self.schedule.scheme}", remedy="clip none, or use another scheme")
        return clip_gradients(self.reducer.stepper.gather(), max_norm, self.schedule, self.communicator)

    def observe(self, observer: Observer | None) -> None:
        """Let `observer` take the moments of each iteration from the next forward on; None takes none."""
        self.observer = observer
        self.executor.observe(observer)

    def close(self) -> None:
        """Bring the weights up to date, take all hooks off the module, and destroy this wrapper's own process groups.

        Every rank closes where it closes at all. A wrapper that is merely dropped leaves its groups to the program's
        `destroy_process_group()`: ranks drop it at moments of their own, and NCCL destroys groups together.
        """
        # Hooks go first, so that no backward hands a message to lanes that are being destroyed.
        if self._release.alive:
            self.complete()
            self._release()
            if self._lanes is not None:
                self._lanes.destroy()

    # ---- servers, and what is saved

    @property
    def serves(self) -> bool:
        """Whether this rank is one of the last ones that do not train but serve, or idle while a server does."""
        servers = 0 if self.schedule is None else self.schedule.sharding.servers
        return self.communicator.rank >= self.communicator.world_size - servers

    def serve(self) -> ServerStatistics:
        """Serve until all training ranks have ended; return what was done, nothing where no server is on this rank.

        A server beside a trainer serves by itself, from the first forward to `end`.
        """
        server = self._server() if self.serves else None
        if server is None or self.schedule is None:
            return ServerStatistics()
        return server.serve_all() if self.schedule.ranks_meet else server.serve_each()

    def end(self) -> ServerStatistics | None:
        """Carry out what is pending, and let servers go, where there are any; nothing is trained after it.

        Returns:
            What a server beside this rank did, once all ranks have ended; None where there was none.
        """
        self.complete()
        if self.schedule is not None:
            self.reducer.messages.end()
        thread, self._beside = self._beside, None
        return None if thread is None else thread.result()

    def scheme_state_dict(self) -> Kept:
        """Return the scheme's own state on this rank, without the module's and the optimizer's, after pending steps.

        Every rank saves its own, with its module's; a server once `serve` has returned, which it does where the others
        `end`, after which all may go on. Nothing is kept where DDP's buckets are in force.
        """
        self.complete()
        return {} if self.schedule is None else self.reducer.state_dict(self._server())

    def load_scheme_state_dict(self, state: Kept) -> None:
        """Take what `scheme_state_dict` returned on this rank, after the module's and the optimizer's own state.

        Raises:
            OptionError: another scheme's, rank's or number of ranks', or while it learns when gradients come.
        """
        self._check_learned("scheme's state")
        self.complete()
        if self.schedule is not None:
            self.reducer.load_state_dict(self._server(), state)

    def _server(self) -> Server | None:
        """Return the server on this rank; None where there is none."""
        schedule, planner = self.schedule, self._planner
        hosts = () if schedule is None else schedule.sharding.hosts
        if self._serving is None and planner is not None and self.communicator.rank in hosts:
            self._serving = self.reducer.messages.server(planner.make_optimizer)
        return self._serving

    # ---- the schedule in force

    def release_streams(self) -> None:
        """Destroy the process groups of schedules that were in force; every rank does, between the same two steps."""
        if self._lanes is not None:
            self._lanes.keep(self.reducer.messages.streams)

    def _carry_out(self, active: BucketSchedule | SchemeSchedule) -> None:
        """Carry a schedule out from the coming iteration on, in place of the one before."""
        if "gradients" in self._handles:
            remove(self._handles["gradients"])
        self.reducer = active
        self.executor = Executor(
            active, find_unused=self.find_unused_parameters, static_graph=self.static_graph, mixed=self.mixed,
            on_gradient=None if self._learning is None else self._learning.gradient, observer=self.observer,
        )  # fmt: skip
        self._handles["gradients"] = self.executor.handles

    def _install(self, schedule: Schedule, plan: BucketPlan, *, keep_groups: bool = False) -> None:
        """Carry `schedule` out from the coming iteration on; optimizers keep what they know."""
        planner, lanes = self._planner, self._lanes
        assert planner is not None
        assert lanes is not None
        active = SchemeSchedule(
            schedule, planner.model, plan, self.communicator, self._options, lanes, planner.make_optimizer
        )
        if self.optimizer is None:
            self.optimizer = ScheduledOptimizer(active.stepper)
            prepared = (self.module.register_state_dict_pre_hook, self.module.register_load_state_dict_pre_hook)
            self._handles["state"] = [register(lambda *_: self.complete()) for register in prepared]  # type: ignore[no-untyped-call]
        else:
            # Momentum and counts of steps go over from the old schedule's updates to the new one's before the old
            # memory goes.
            former: Sequence[ParameterUpdate] = self.reducer.stepper.updates
            move_state(former, active.stepper.updates)
            (self.optimizer.follow_with_groups if keep_groups else self.optimizer.follow)(active.stepper)
        self.schedule, planner.plan = schedule, plan
        if self.mixed is not None and self.mixed.reduce_dtype != self.mixed.dtype:
            active.average_after(self.mixed.reduce_dtype)
        self._carry_out(active)
        self._announce(wanted=False)  # a module that announces by itself may have been asked by others since
        self._announce(wanted=active.waits_in_forward or self.learns)

    def _announce(self, *, wanted: bool) -> None:
        """Have modules announce, or announce no more, that forward uses their parameters."""
        if self._points is None and wanted:
            announce = self.executor.forward if self._learning is None else self._learn_use
            self._points = ForwardPoints(self.module, self.model, announce)
            self._handles["forward"] = self._points.handles
        elif self._points is not None and not wanted:
            self._points.remove()
            self._points = None

    def _learn(self) -> None:
        """Make the scheme's schedule, once its times are learned, between two steps of the optimizer."""
        planner, learning, lanes = self._planner, self._learning, self._lanes
        if planner is None or learning is None or lanes is None or not learning.done:
            return
        # Only between two steps of the optimizer: in the middle of accumulation gradients lie in the memory of the old
        # schedule.
        if self.require_backward_grad_sync and self.reducer.iteration % planner.accumulate == 0:
            self.executor.check_finished()
            self._learning = None
            self.complete()
            schedule = planner.make_learned(learning, lanes.of("main", rings=False), self.caps)
            check_agreement(schedule, self.communicator, self.device)
            self._install(schedule, planner.plan)
            self.reducer.stats.begin(self.reducer.iteration + 1)

    # ---- what is called at the points of an iteration

    def _begin(self, *, local: bool) -> None:
        if self.schedule is not None:
            if self.observer is not None:
                self.observer.note_schedule()
            if self._beside is None and not self.serves and (server := self._server()) is not None:
                self._beside = self.reducer.messages.serve_beside(server)
        self.reducer.begin(local=local)
        self.executor.begin(local=local)

    def _begin_module(self) -> None:
        """The module's forward begins."""
        if self._learning is not None:
            self._learning.begin()
        if self._points is not None:
            self._points.announce(self._points.at_start)

    def _end_module(self) -> None:
        """The module's forward has ended."""
        if self._points is not None:
            self._points.learn()
        if self._learning is not None:
            self._learning.end_forward()

    def _learn_use(self, indices: Sequence[int]) -> bool:
        if self._learning is not None and torch.is_grad_enabled():
            self._learning.forward(indices)
        return self.executor.forward(indices)

    def _check_learned(self, place: str) -> None:
        if self._learning is not None:
            remedy = "give `learn=0`, or wait until times are learned"
            raise OptionError("the schedule is still to be made", place=place, remedy=remedy)


def _release(handles: Mapping[str, list[RemovableHandle]], lanes: CommunicationStreams | None) -> None:
    for each in handles.values():
        remove(each)
    if lanes is not None:
        lanes.close()
