"""Data-parallel training by any schedule: a module, its optimizer, and the messages between ranks."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ddpexec.ddp import replacing
from ddpexec.ddp.buffers import BufferSynchroniser
from ddpexec.ddp.comm_hooks import Hook, check_hook, make_averaging_hook
from ddpexec.ddp.executor import Executor
from ddpexec.ddp.forward_points import ForwardPoints
from ddpexec.ddp.gradient_hooks import remove
from ddpexec.ddp.joining import JoinableModule
from ddpexec.ddp.lanes import CommunicationStreams
from ddpexec.ddp.learning import ProbeTimes
from ddpexec.ddp.mixed import MixedPrecision
from ddpexec.ddp.options import check_module, check_objects, communicator_of, hook_twice, make_mixed_precision_error
from ddpexec.ddp.parameters import broadcast_state, collect, verify
from ddpexec.ddp.planner import SchedulePlanner, check_agreement
from ddpexec.ddp.refusals import check_joinable, check_module_for_scheme
from ddpexec.ddp.scheme_schedule import Kept, SchemeSchedule
from ddpexec.ddp.served import Server, ServerStatistics
from ddpexec.ddp.stepper import ScheduledOptimizer
from ddpexec.ddp.updates import MakeOptimizer, ParameterUpdate, clip_gradients, move_state
from ddpexec.ddp.used import tie
from ddpexec.errors import OptionError
from ddpexec.timing.observe import Observer
from ddpsim.bucketing import BucketCaps, BucketPlan
from ddpsim.operations import Operation
from ddpsim.schedules.named import scheme_named
from ddpsim.schedules.schedule import Schedule
from ddpsim.schedules.scheme import Scheme


class ScheduledDataParallel(JoinableModule):
    """Train `module` data parallel by a scheme.

    Step `optimizer` once an iteration (or once in `every`), after its backward. Between a step and the next forward
    weights may be behind; `state_dict` of this module, of the wrapped one and of the optimizer bring them up to date
    first, and so does `complete`.

    Args:
        module: dense gradients, on one device.
        scheme: its name, as `ddpsim.schedules.named.scheme_named` reads it, or a function from a setup to a schedule.
        make_optimizer: makes an optimizer of some parameters, or of a flat part of them where the scheme shards it; it
            is called for each group that is updated by itself.
        process_group: torch's, or a list of groups whose like messages take in turn; the default group where None.
        caps: of the buckets.
        plan: the buckets instead.
        overlap: whether messages may begin before backward has ended.
        every: of how many iterations the last one sends gradients, where they are not left out by `no_sync`.
        accumulate: iterations of a step of the optimizer, where more send gradients than the last; None is `every`.
        find_unused_parameters: whether parameters may have no gradient in an iteration.
        static_graph: whether every backward uses the same parameters equally often, as torch's class means it.
        mixed_precision: torch's `_MixedPrecision`, where the scheme takes it: gradients come and are sent in its
            `param_dtype`, or, of whole buckets, summed in its `reduce_dtype`.
        broadcast_buffers: whether rank 0's buffers are broadcast before a forward.
        comm: `noop` sends nothing after construction.
        learn: iterations that are trained as by DDP first, in which rank 0 learns when gradients come and when forward
            needs what; buckets are then made anew in that order, and the scheme is told.
        observer: takes the moments of each iteration; None takes none.

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
        accumulate: int | None = None,
        find_unused_parameters: bool = False,
        static_graph: bool = False,
        mixed_precision: Any = None,
        broadcast_buffers: bool = True,
        comm: str = "real",
        learn: int = 0,
        observer: Observer | None = None,
    ) -> None:
        super().__init__(module, communicator_of(process_group, None, comm))
        self.observer = observer
        self.executor: Executor = None  # type: ignore[assignment]
        self.reducer: SchemeSchedule = None  # type: ignore[assignment]
        self.optimizer: ScheduledOptimizer = None  # type: ignore[assignment]
        self._serving: Server | None
        self._beside: Future[ServerStatistics] | None
        check_objects(mixed_precision=mixed_precision)
        if mixed_precision is not None and find_unused_parameters:
            raise make_mixed_precision_error("find_unused_parameters=True")
        model = collect(module)
        check_module(module, model.tensors)
        check_module_for_scheme(module, str(getattr(scheme, "name", scheme)))
        self.model, self.device = model, model.tensors[0].device
        self.parameters_to_ignore, self.forward_sync_buffers = (), broadcast_buffers
        verify(model, self.communicator, self.device)
        broadcast_state(module, self.communicator, (), buffers=True)
        self._planner = SchedulePlanner(
            scheme=scheme_named(scheme) if isinstance(scheme, str) else scheme, model=model,
            communicator=self.communicator, make_optimizer=make_optimizer, caps=caps or BucketCaps(), given=plan,
            overlap=overlap, every=every, accumulate=accumulate or every, mixed_precision=mixed_precision,
            find_unused=find_unused_parameters or static_graph,
        )  # fmt: skip
        self._step_iterations = accumulate or every
        self._make_optimizer, self.find_unused_parameters = make_optimizer, find_unused_parameters
        self.static_graph = static_graph
        self._lanes = CommunicationStreams(self.communicator)
        self._learning = ProbeTimes(len(model.tensors), learn) if learn else None
        self._hooks: list[RemovableHandle] = []
        first = self._planner.make_first(learns=bool(learn))
        self.mixed = None if mixed_precision is None else MixedPrecision(mixed_precision, module)
        check_agreement(first, self.communicator, self.device)
        self._install(first)
        handles: list[RemovableHandle] = [
            module.register_state_dict_pre_hook(self._prepare_state),  # type: ignore[no-untyped-call]
            module.register_load_state_dict_pre_hook(self._prepare_state),  # type: ignore[no-untyped-call]
        ]
        self._handles = [handles, self._hooks]
        self._points: ForwardPoints | None = None
        self._announce(wanted=self.reducer.waits_in_forward or bool(learn))
        self._synchroniser = BufferSynchroniser(module, self.communicator, ()) if broadcast_buffers else None
        self._hooked, self._serving, self._beside = False, None, None
        # Hooks of gradients hold the executor and its memory: they go with this module.
        self._end = weakref.finalize(self, _end, self._handles, self._lanes)
        self._end.atexit = False

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Call the module; what it needs of the last iteration comes in before."""
        if not self._end.alive:
            raise OptionError("this wrapper has been closed", remedy="train the module in a new one")
        observer = self.observer
        if not torch.is_grad_enabled():
            self.complete()
            if self.mixed is not None:
                inputs, kwargs = self.mixed.cast_inputs(inputs, kwargs)
            output = self.module(*inputs, **kwargs)
            if self.mixed is not None:
                self.mixed.restore()
            return output
        if self._join_config.enable:
            self.check_joinable()
            self.notify_join()
            self.backward_is_synced(joined=False)
        if self.require_backward_grad_sync:
            self.synchronise_buffers(self.buffers_source())
        settled = self.require_backward_grad_sync and self.reducer.iteration % self._step_iterations == 0
        if self._learning is not None and self._learning.done and settled:
            self._replan(self._learning)
        begin = observer.now() if observer is not None else None
        self.executor.check_finished()
        self._begin(local=not self.require_backward_grad_sync)
        if self._learning is not None:
            self._learning.begin()
        if self.mixed is not None:
            inputs, kwargs = self.mixed.cast_inputs(inputs, kwargs)
        if self._points is not None:
            self._forward_point(self._points.at_start)
        output = self.module(*inputs, **kwargs)
        if self._points is not None:
            self._points.learn()
        if self._learning is not None:
            self._learning.end_forward()
        if observer is not None:
            observer.module(begin)
        self.executor.expecting = False  # in `no_sync` gradients add up
        if self.require_backward_grad_sync:
            self.executor.expect(output)
        # Under a reentrant checkpoint the first gradients come in a backward within backward, which ends before it.
        tied = self.executor.searching or self.static_graph
        return tie(output, self.executor.backward_started, clone=True) if tied else output

    def register_comm_hook(self, state: object, hook: Hook) -> None:
        """Let `hook(state, bucket)` reduce each bucket of gradients; it returns a future of the reduced flat tensor.

        Raises:
            TypeError, ValueError: what cannot be a hook.
            OptionError: the scheme sums something else, times are still to be learned, or a hook is registered already.
        """
        check_hook(hook)
        self._check_learned("communication hook")
        if self._hooked or self.mixed is not None:
            raise hook_twice(self.mixed is not None)
        self.reducer.messages.use_hook(hook, state)
        self._hooked = True

    def check_joinable(self) -> None:
        """Raise where the scheme has ranks do more in an iteration than sum gradients, or times are to be learned."""
        self._check_learned("join()")
        check_joinable(self.schedule)

    def shadow_iteration(self) -> None:
        """Take part in an iteration of the ranks that have input, with gradients of zero, and step nothing."""
        if self.backward_is_synced(joined=True):
            self.synchronise_buffers(self.common_rank(candidate=False))
            self.reducer.drop_gradients()
            self._begin(local=False)
            self.executor.shadow()
            self.reducer.drop_gradients()

    def synchronise_buffers(self, source: int) -> None:
        """Take the buffers of rank `source`, where the scheme broadcasts buffers and it was not left out."""
        if self._synchroniser is not None and self.schedule.broadcasts_buffers:
            self._synchroniser.synchronise(source, self.observer)

    def complete(self) -> None:
        """Carry out what is still to be carried out, so that the parameters are those after the last step."""
        self.reducer.stepper.complete()

    def close(self) -> None:
        """Bring the weights up to date, take all hooks off the module, and destroy this wrapper's process groups.

        Every rank closes where it closes at all. A wrapper that is merely dropped leaves its groups to the program's
        `destroy_process_group()`: ranks drop it at moments of their own, and NCCL destroys groups together.
        """
        if self._end.alive:
            self.complete()
            self._end()
            self._lanes.destroy()

    @property
    def serves(self) -> bool:
        """Whether this rank, one of the last, trains nothing: it serves, or idles beside a server."""
        return self.communicator.rank >= self.communicator.world_size - self.schedule.sharding.servers

    def serve(self) -> ServerStatistics:
        """Serve until all training ranks have ended; return what was done, nothing where no server is on this rank.

        A server beside a trainer serves by itself, from the first forward to `end`.
        """
        server = self._server() if self.serves else None
        if server is None:
            return ServerStatistics()
        return server.serve_all() if self.schedule.ranks_meet else server.serve_each()

    def scheme_state_dict(self) -> Kept:
        """Return what the scheme keeps on this rank beside the module's and the optimizer's state, after pending steps.

        Every rank saves its own, with its module's; a server once `serve` has returned, which it does where the others
        `end`, after which all may go on.
        """
        self.complete()
        return self.reducer.state_dict(self._server())

    def load_scheme_state_dict(self, state: Kept) -> None:
        """Take what `scheme_state_dict` returned on this rank, after the module's and the optimizer's own state.

        Raises:
            OptionError: another scheme's, rank's or number of ranks', or while it learns when gradients come.
        """
        self._check_learned("scheme's state")
        self.complete()
        self.reducer.load_state_dict(self._server(), state)

    def _server(self) -> Server | None:
        """Return the server on this rank; None where there is none."""
        if self._serving is None and self.communicator.rank in self.schedule.sharding.hosts:
            self._serving = self.reducer.messages.server(self._make_optimizer)
        return self._serving

    def end(self) -> ServerStatistics | None:
        """Carry out what is pending, and let servers go, where there are any; nothing is trained after it.

        Returns:
            What a server beside this rank did, once all ranks have ended; None where there was none.
        """
        self.complete()
        self.reducer.messages.end()
        thread, self._beside = self._beside, None
        return None if thread is None else thread.result()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset the gradients of all parameters."""
        self.optimizer.zero_grad(set_to_none)

    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Scale all gradients so that their joint 2-norm is at most `max_norm`; return what it was.

        It needs all gradients, so it waits for all messages: a scheme that lets the next forward wait for each of them
        loses that. Every rank calls it, after backward and before the optimizer's step.
        """
        if self.schedule.sharding.hosts:
            what = "gradients have left for the servers when they could be clipped"
            raise OptionError(what, place=f"scheme {self.schedule.scheme}", remedy="clip none, or use another scheme")
        return clip_gradients(self.reducer.stepper.gather(), max_norm, self.schedule, self.communicator)

    # ---- schedules

    use_schedule, observe, release_streams = replacing.use_schedule, replacing.observe, replacing.release_streams
    fixed = property(replacing.explain_fixed)
    broadcast_buffers = property(lambda wrapper: wrapper.forward_sync_buffers)

    @property
    def caps(self) -> BucketCaps:
        """The caps that buckets are made by."""
        return self._planner.caps

    @property
    def learns(self) -> bool:
        """Whether it still trains as by DDP, to learn when gradients come."""
        return self._learning is not None

    @property
    def plan(self) -> BucketPlan:
        """The buckets in force."""
        return self._planner.plan

    @property
    def wire(self) -> Callable[[Operation, int], float] | None:
        """What a message takes, as probed when times were learned; None before."""
        return self._planner.wire

    def _install(self, schedule: Schedule, *, keep_groups: bool = False) -> None:
        """Carry `schedule` out from the coming iteration on; optimizers keep what they know."""
        former: Sequence[ParameterUpdate] = self.reducer.stepper.updates if self.reducer is not None else ()
        sent = None if self.mixed is None else self.mixed.dtype
        made = SchemeSchedule(
            schedule, self.model, self.communicator, self._lanes, self._make_optimizer,
            some_unused=self.find_unused_parameters, static_graph=self.static_graph, sent=sent, observer=self.observer,
        )  # fmt: skip
        if self.optimizer is None:
            self.optimizer = ScheduledOptimizer(made.stepper)
        else:
            move_state(former, made.stepper.updates)
            (self.optimizer.follow_with_groups if keep_groups else self.optimizer.follow)(made.stepper)
        self.schedule, self.reducer = schedule, made
        if self.mixed is not None and self.mixed.reduce_dtype != self.mixed.dtype:
            made.messages.use_hook(make_averaging_hook(self.communicator, self.mixed.reduce_dtype), None)
        told = made.check_settled if schedule.update == "before_use" else None
        remove(self._hooks)
        self.executor = Executor(
            made, find_unused=self.find_unused_parameters, static_graph=self.static_graph, mixed=self.mixed,
            told=told if self._learning is None else self._learning.gradient, observer=self.observer,
        )  # fmt: skip
        self._hooks[:] = self.executor.handles

    def _announce(self, *, wanted: bool) -> None:
        """Have modules announce, or announce no more, that forward uses their parameters."""
        if self._points is None and wanted:
            self._points = ForwardPoints(self.module, self.model, self._forward_point)
            self._handles[2:] = [self._points.handles]
        elif self._points is not None and not wanted:
            self._points.remove()
            self._points = None

    def _replan(self, learning: ProbeTimes) -> None:
        """Make the scheme's schedule, of what was learned."""
        self._learning = None
        self.complete()
        schedule = self._planner.make_learned(learning, self._lanes.of("main", rings=False))
        check_agreement(schedule, self.communicator, self.device)
        self._install(schedule)

    # ---- what is called at the points of an iteration

    def _begin(self, *, local: bool) -> None:
        if self.observer is not None:
            self.observer.note_schedule()
        if self._beside is None and not self.serves and (server := self._server()) is not None:
            self._beside = self.reducer.messages.serve_beside(server)
        self.reducer.begin(local=local)
        self.executor.begin(local=local)

    def _check_learned(self, place: str) -> None:
        if self._learning is not None:
            remedy = "give `learn=0`, or wait until times are learned"
            raise OptionError("the schedule is still to be made", place=place, remedy=remedy)

    def _forward_point(self, indices: Sequence[int]) -> bool:
        if self._learning is not None and torch.is_grad_enabled():
            self._learning.forward(indices)
        return self.executor.forward(indices)

    def _prepare_state(self, *_: Any) -> None:
        self.complete()


def _end(handles: Iterable[list[RemovableHandle]], lanes: CommunicationStreams) -> None:
    for each in handles:
        remove(each)
    lanes.close()
