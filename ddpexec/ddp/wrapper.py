"""`DistributedDataParallel`: torch's constructor, for any bucket plan or scheme, in Python over process groups.

Start with `forward`, `_begin_forward` and `_end_forward`; the rest of an iteration happens in the hooks of
`ddp.executor`. Options are checked in `ddp.options`; what serves schemes is the base class in `ddp.scheduled`; methods
that only torch's private API has are in `ddp.torch_api`.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as TorchDDP

from ddpexec.ddp import options as construction
from ddpexec.ddp import torch_api
from ddpexec.ddp.bucket_schedule import BucketSchedule
from ddpexec.ddp.buckets import ReducerOptions
from ddpexec.ddp.comm_hooks import Hook, check_hook
from ddpexec.ddp.compiling import call, disable_compile, disable_own_compile
from ddpexec.ddp.drop import LayerDrop
from ddpexec.ddp.hooks import step_in_backward, take_over_optimizers
from ddpexec.ddp.joining import JoinableModule
from ddpexec.ddp.mixed import MixedPrecision
from ddpexec.ddp.parameters import (
    BROADCAST_BYTES,
    BufferSynchroniser,
    ModelParameters,
    broadcast_state,
    collect,
    verify,
    verify_plan,
)
from ddpexec.ddp.planner import SchedulePlanner, check_agreement
from ddpexec.ddp.refusals import check_module_for_scheme
from ddpexec.ddp.updates import MakeOptimizer
from ddpexec.ddp.used_parameters import tie
from ddpexec.errors import OptionError
from ddpexec.timing.observe import Observer
from ddpsim.bucketing import BucketCaps, BucketPlan, rebuilt_plan
from ddpsim.bucketing.order.policy import OrderPolicy
from ddpsim.bucketing.order.predictors import Predictor
from ddpsim.bucketing.order.rebuild import Rebuild
from ddpsim.bucketing.plan import custom_plan
from ddpsim.schedules.named import scheme_named
from ddpsim.schedules.schedule import Schedule
from ddpsim.schedules.scheme import Scheme

_MADE_ANEW = (
    "process_group", "communicator", "executor", "reducer", "buffer_sync", "observer", "device_mesh", "_release",
    "_handles",
)  # fmt: skip


class DistributedDataParallel(JoinableModule):
    """Train `module` data parallel by any schedule: the arguments of torch's class by the same names, and these.

    By default it is DDP's buckets, and the user steps an optimizer of his own. By a `scheme` step `optimizer`, once an
    iteration (or once in `every`) after its backward. Between a step and the next forward weights may be behind;
    `state_dict` of this module, of the wrapped one and of the optimizer bring them up to date first, and so does
    `complete`.

    Args:
        process_group: torch's, or a list of groups used in turn.
        plan: buckets to use from the first iteration on, in launch order; not rebuilt unless `rebuild` is given.
        first_bucket_mb: cap of the first bucket, in MiB, beside `bucket_cap_mb`.
        rebuild: when buckets are rebuilt in arrival order: `never`, `once`, `drift`, or a
            `ddpsim.bucketing.order.Rebuild`. None is as torch: once, but never under
            `find_unused_parameters`, where any of them may be asked for.
        predictor: what each rank expects: `last`, `mean`, `exponential`, `branch`, `context`, `package.module:Class`, a
            class, or a new `ddpsim.bucketing.order.Predictor`.
        consensus: whose expectation wins: `rank0`, `mean` or `slowest`.
        drop: leaves layers of `module` out of an iteration, the same on every rank, and their buckets off the wire.
        remap_dropped: with `drop`, what is left of an iteration moves up into the memory of the first buckets, so that
            no bucket sends what is left out (Li et al. 2020, section 6.2.2).
        scheme: its name, as `ddpsim.schedules.named.scheme_named` reads it, or a scheme; None is DDP's buckets.
        make_optimizer: with `scheme`, makes an optimizer of some parameters, or of a flat part of them where the scheme
            shards it; it is called for each group that is updated by itself.
        overlap: with `scheme`, whether messages may begin before backward has ended.
        every: with `scheme`, of how many iterations the last one sends gradients, beside `no_sync`.
        accumulate: with `scheme`, iterations of a step of the optimizer, where more than the last send gradients; None
            is `every`.
        learn: with `scheme`, iterations that are trained as by DDP first, in which rank 0 learns when gradients come
            and when forward needs what; buckets are then made anew in that order, and the scheme is told.
        comm: `noop` sends nothing after construction: the compute-only floor.
        observer: takes the moments of each iteration; None, the default, takes none.

    Raises:
        ExecutionError: an option that contradicts another or does not apply, or ranks that differ.
        PlanError: a schedule that cannot be carried out.
    """

    def __init__(
        self,
        module: nn.Module,
        device_ids: Sequence[Any] | None = None,
        output_device: Any = None,
        dim: int = 0,
        broadcast_buffers: bool | None = None,
        init_sync: bool = True,
        process_group: Any = None,
        bucket_cap_mb: float | None = None,
        find_unused_parameters: bool = False,
        check_reduction: bool = False,
        gradient_as_bucket_view: bool = False,
        static_graph: bool = False,
        delay_all_reduce_named_params: Any = None,
        param_to_hook_all_reduce: Any = None,
        mixed_precision: Any = None,
        device_mesh: Any = None,
        skip_all_reduce_unused_params: bool = False,
        bucket_cap_mb_list: Sequence[float] | None = None,
        batched_grad_copy: bool = False,
        forward_sync_buffers: bool | None = None,
        *,
        plan: BucketPlan | None = None,
        first_bucket_mb: float | None = None,
        rebuild: str | Rebuild | None = None,
        predictor: str | type[Predictor] | Predictor = "last",
        consensus: str = "rank0",
        drop: LayerDrop | None = None,
        remap_dropped: bool = False,
        scheme: str | Scheme | None = None,
        make_optimizer: MakeOptimizer | None = None,
        overlap: bool = True,
        every: int = 1,
        accumulate: int | None = None,
        learn: int = 0,
        comm: str = "real",
        observer: Observer | None = None,
    ) -> None:
        construction.check_flags(
            init_sync=init_sync, find_unused_parameters=find_unused_parameters, static_graph=static_graph,
            gradient_as_bucket_view=gradient_as_bucket_view, batched_grad_copy=batched_grad_copy,
            skip_all_reduce_unused_params=skip_all_reduce_unused_params, remap_dropped=remap_dropped,
            overlap=overlap,
        )  # fmt: skip
        construction.check_objects(
            module=module, plan=plan, drop=drop, observer=observer, rebuild=rebuild, predictor=predictor,
            consensus=consensus, device_mesh=device_mesh, mixed_precision=mixed_precision, device_ids=device_ids,
            scheme=scheme, make_optimizer=make_optimizer,
        )  # fmt: skip
        construction.check_scheme(
            scheme=scheme, make_optimizer=make_optimizer, overlap=not overlap, every=every != 1, accumulate=accumulate,
            learn=learn, gradient_as_bucket_view=gradient_as_bucket_view, batched_grad_copy=batched_grad_copy,
            skip_all_reduce_unused_params=skip_all_reduce_unused_params, drop=drop, remap_dropped=remap_dropped,
            rebuild=rebuild, predictor=predictor != "last", consensus=consensus != "rank0",
        )  # fmt: skip
        if dim != 0:
            what = f"dim={dim} has no effect: inputs are not scattered"
            raise OptionError(what, remedy="split the batch by rank yourself")
        if delay_all_reduce_named_params is not None or param_to_hook_all_reduce is not None:
            what = "delay_all_reduce_named_params and param_to_hook_all_reduce are not offered"
            remedy = "give a plan with a bucket of their own for these parameters, where it is wanted in the order"
            raise OptionError(what, remedy=remedy)
        if mixed_precision is not None and find_unused_parameters:
            raise construction.make_mixed_precision_error("find_unused_parameters=True")
        if check_reduction:
            text = "The `check_reduction` argument is deprecated and has no effect: reduction is always checked."
            warnings.warn(text, FutureWarning, stacklevel=2)
        super().__init__(module, construction.communicator_of(process_group, device_mesh, comm))
        self.device_mesh, self._comm, self.observer, self.drop = device_mesh, comm, observer, drop
        construction.localise(module, device_mesh)
        self.parameters_to_ignore = set(getattr(module, "_ddp_params_and_buffers_to_ignore", ()))
        tensors = [tensor for name, tensor in module.named_parameters() if name not in self.parameters_to_ignore]
        construction.check_module(module, tensors)
        if scheme is not None:
            check_module_for_scheme(module, str(getattr(scheme, "name", scheme)))
        self.device_ids, self.output_device = construction.devices_of(tensors, device_ids, output_device)
        self.device, self.device_type = tensors[0].device, tensors[0].device.type
        at_construction, self.forward_sync_buffers = construction.buffer_sync(broadcast_buffers, forward_sync_buffers)
        self.require_forward_param_sync = self.clone_outputs = True
        self._options = ReducerOptions(
            caps=construction.caps_of(bucket_cap_mb, first_bucket_mb, bucket_cap_mb_list),
            gradient_as_bucket_view=gradient_as_bucket_view,
            find_unused_parameters=find_unused_parameters,
            static_graph=static_graph,
            skip_all_reduce_unused_params=skip_all_reduce_unused_params,
            batched_grad_copy=batched_grad_copy,
            remap_dropped=remap_dropped,
        )
        self.find_unused_parameters, self.static_graph = find_unused_parameters, static_graph
        self.gradient_as_bucket_view = gradient_as_bucket_view
        self._order = rebuild, predictor, consensus
        self._plan, self.mixed = plan, None
        model = collect(module, self.parameters_to_ignore)
        planner = first = None
        buckets = self._plan_first(model) if scheme is None else plan or rebuilt_plan(model.policy, self.caps)
        construction.check_drop(drop, self._options, model.names)
        # Collectives: torch's `_verify_param_shape_across_processes` and `_sync_module_states`, at the same place of
        # its constructor.
        if init_sync:
            verify(model, self.communicator, self.device)
            if scheme is None:
                verify_plan(buckets, self.communicator, self.device)
            broadcast_state(module, self.communicator, self.parameters_to_ignore, buffers=at_construction)
        if scheme is not None and make_optimizer is not None:
            planner = SchedulePlanner(
                scheme=scheme_named(scheme) if isinstance(scheme, str) else scheme, model=model,
                communicator=self.communicator, make_optimizer=make_optimizer, plan=buckets, given=plan is not None,
                overlap=overlap, every=every, accumulate=accumulate or every, mixed_precision=mixed_precision,
                find_unused=find_unused_parameters or static_graph,
            )  # fmt: skip
            first = planner.make_first(learns=bool(learn))
        if mixed_precision is not None:
            self.mixed = MixedPrecision(mixed_precision, module, self.parameters_to_ignore)
            self._options.bucket_dtype = self.mixed.dtype
        self._start(planner, learn)
        if first is None:
            self._build(model, buckets)
        else:
            check_agreement(first, self.communicator, self.device)
            self._install(first, buckets)
        self._optimizers_taken_over = planner is not None
        self.buffer_sync = BufferSynchroniser(module, self.communicator, self.parameters_to_ignore)
        self.first_bucket_sizes = ", ".join(str(bucket.size_bytes) for bucket in buckets.buckets)

    # ---- training

    def batch_context(self, context: Hashable) -> None:
        """Say, before a forward, what is known of its batch on this rank, for a predictor that learns by it.

        A task, a length, a number of layers: whatever tells in which order gradients will come. It holds for one synced
        iteration. A scheme's schedule has no predictor.
        """
        if self.schedule is None:
            self.reducer.expect_context(context)

    @disable_own_compile
    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Call the module, with buckets, buffers and the search for unused parameters looked after."""
        with torch.autograd.profiler.record_function("DistributedDataParallel.forward"):
            inputs, kwargs = self._begin_forward(inputs, kwargs)
            begin = self.observer.now() if self.observer is not None else None
            output = call(self.module, inputs, kwargs)
            if self.observer is not None:
                self.observer.module(begin)
            return self._end_forward(output)

    def register_comm_hook(self, state: object, hook: Hook) -> None:
        """Let `hook(state, bucket)` reduce each bucket; it returns a future of the reduced flat tensor.

        Raises:
            TypeError, ValueError: what cannot be a hook.
            ExecutionError: a hook is registered already.
        """
        try:
            check_hook(hook)
            self._check_learned("communication hook")
            if self.reducer.hooked or self.mixed is not None:
                raise construction.hook_twice(self.mixed is not None)
        except (TypeError, ValueError, RuntimeError) as error:
            self.executor.note_failure(error)
            raise
        self.reducer.use_hook(hook, state)

    @property
    def fixed(self) -> str | None:
        """Why no other schedule may take the place of the one in force; None where one may."""
        when, predictor, consensus = self._order
        plain = when in (None, "once") and (predictor, consensus) == ("last", "rank0")
        changes = self._planner is None and (self.drop is not None or self._plan is not None or not plain)
        reasons = {
            "a communication hook sends its buckets, which cannot be seen on their way": self.reducer.hooked,
            "its buckets change from step to step by other rules: drop, rebuild or a plan of its own": changes,
            "it has several process groups, and what one sends says nothing of the others": (
                len(self.communicator.groups) > 1
            ),
        }
        reason = next((reason for reason, so in reasons.items() if so), None)
        return reason if reason is not None or self._planner is None else self._planner.fixed

    def use_schedule(self, caps: BucketCaps, groups: Sequence[Sequence[int]], schedule: Schedule | None = None) -> None:
        """Send by another schedule from the next forward on; call it on every rank between the same two steps.

        Pending updates are carried out first. A scheme's optimizer keeps its state and its parameter groups, which a
        learning rate scheduler may hold.

        Args:
            caps: as the constructor would have been given them.
            groups: the buckets that they give, by registration index, in launch order: they are not rebuilt again.
            schedule: with these buckets, of a scheme, the same on every rank; None is DDP's.

        Raises:
            PlanError: buckets, or messages, that do not hold each parameter once.
            OptionError: a message that cannot be carried out, parameter groups that differ inside one, a schedule where
                the user steps an optimizer of his own, or while it learns when gradients come.
        """
        if self._planner is not None:
            self._check_learned(f"scheme {self._planner.scheme.name}")
            self.complete()
            plan, new_schedule = self._planner.make_other(groups, schedule)
            self._install(new_schedule, plan, keep_groups=True)
        elif schedule is not None:
            what, remedy = f"scheme {schedule.scheme} steps an optimizer, and none was given", "give `make_optimizer`"
            raise OptionError(what, remedy=remedy)
        else:
            plan = custom_plan(self.model.policy, groups)
            self.reducer.use_plan(plan, self._order_policy(self.model, planned=True))
        self._options.caps = caps

    # ---- construction

    def _plan_first(self, model: ModelParameters) -> BucketPlan:
        find_unused, static = self._options.find_unused_parameters, self._options.static_graph
        return construction.first_plan(model, self.caps, self._plan, find_unused=find_unused, static=static)

    def _order_policy(self, model: ModelParameters, *, planned: bool) -> OrderPolicy:
        """Return when buckets are rebuilt and in which order, by the options in force."""
        return construction.order_policy(len(model.tensors), self._options, planned, *self._order)

    def _build(self, model: ModelParameters, plan: BucketPlan) -> None:
        """Carry DDP's buckets out from the coming iteration on, `plan` first."""
        order = self._order_policy(model, planned=self._plan is not None)
        bucket_schedule = BucketSchedule(model, plan, self.communicator, self._options, order)
        if self.mixed is not None:
            bucket_schedule.average_after(self.mixed.reduce_dtype)
        self._carry_out(bucket_schedule)

    def _build_anew(self) -> None:
        """Begin anew over the communicator there is now."""
        self.process_group, self.device_mesh = self.communicator.main, None
        model = collect(self.module, self.parameters_to_ignore)
        self._build(model, self._plan_first(model))
        self._optimizers_taken_over = False
        self.buffer_sync = BufferSynchroniser(self.module, self.communicator, self.parameters_to_ignore)

    def use_process_group(self, new_process_group: Any) -> None:
        """Reduce over `new_process_group` from now on, as after ranks have left or come back; buckets begin anew.

        A rank outside the group keeps its own, and must not call the module until it is given a group again. A
        communication hook stays; whatever group it holds itself is its own business.
        """
        if dist.distributed_c10d._rank_not_in_group(new_process_group):
            return
        if self.schedule is not None:
            what = f"scheme {self.schedule.scheme} has process groups of its own, which stay"
            raise OptionError(what, remedy="wrap the module anew")
        former, buffers = self.reducer, self.buffer_sync
        self.communicator = construction.communicator_of(new_process_group, None, self._comm)
        self._build_anew()
        self.reducer.take_over(former)
        self.buffer_sync.hook, self.buffer_sync.after_forward = buffers.hook, buffers.after_forward

    def __getstate__(self) -> dict[str, Any]:
        if self.schedule is not None:
            what = f"scheme {self.schedule.scheme} has process groups and hooks of its own, which are not pickled"
            raise OptionError(what, remedy="pickle module.state_dict(), and what the scheme and its optimizer keep")
        if self.process_group is not dist.group.WORLD or len(self.communicator.groups) > 1:
            what = "DDP Pickling/Unpickling are only supported when using DDP with the default process group"
            raise OptionError(what, remedy="leave process_group out, or pickle ddp.module")
        return {name: value for name, value in self.__dict__.items() if name not in _MADE_ANEW}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.communicator = construction.communicator_of(None, None, self._comm)
        self.observer = None
        self._start(None)
        self._build_anew()

    # ---- what else torch's class has

    broadcast_buffers = property(
        lambda ddp: ddp.forward_sync_buffers, lambda ddp, value: setattr(ddp, "forward_sync_buffers", value)
    )
    broadcast_bucket_size = BROADCAST_BYTES
    bucket_bytes_cap = property(lambda ddp: int(max(ddp.caps.limits())))
    bucket_bytes_cap_list = property(lambda ddp: list(ddp.caps.limits()) if ddp.caps.bucket_cap_mb_list else [])
    _set_params_and_buffers_to_ignore_for_model = staticmethod(TorchDDP._set_params_and_buffers_to_ignore_for_model)
    _get_data_parallel_params = staticmethod(TorchDDP._get_data_parallel_params)
    _get_ddp_logging_data = torch_api.logging_data
    _register_buffer_comm_hook = torch_api.register_buffer_hook
    _register_builtin_comm_hook = torch_api.register_builtin_hook
    _set_ddp_runtime_logging_sample_rate = torch_api.set_sample_rate
    _default_broadcast_coalesced = torch_api.broadcast_coalesced
    _build_params_for_reducer = torch_api.reducer_parameters
    _build_debug_param_to_name_mapping = TorchDDP._build_debug_param_to_name_mapping
    _log_and_throw, logger = TorchDDP._log_and_throw, None  # that function raises by
    _register_fused_optim = TorchDDP._register_fused_optim
    _set_static_graph = torch_api.set_static_graph
    _update_process_group = use_process_group
    _set_ddp_sink_clone = torch_api.set_sink_clone
    _check_reducer_finalized = torch_api.check_finished
    _remove_autograd_hooks = torch_api.remove_hooks

    # ---- around forward

    @disable_compile
    def _begin_forward(self, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if not self._release.alive:
            raise OptionError("this wrapper has been closed", remedy="train the module in a new one")
        training, local = torch.is_grad_enabled(), not self.require_backward_grad_sync
        if not self._optimizers_taken_over:
            self._take_over_optimizers()
        if self.schedule is not None and not training:
            self.complete()
        else:
            self._begin_iteration(training=training, local=local)
        if self.device_ids:
            (inputs,), (kwargs,) = dist.utils._to_kwargs(inputs, kwargs, self.device, True)
        if self.mixed is not None:
            inputs, kwargs = self.mixed.cast_inputs(inputs, kwargs)
        if training:
            self._begin_module()
        return inputs, kwargs

    def _begin_iteration(self, *, training: bool, local: bool) -> None:
        """Do what ranks do together before a forward, and begin an iteration where it is for a backward."""
        if self._join_config.enable:
            self.check_joinable()
        if training and not local:
            self.reducer.stats.begin(self.reducer.iteration + 1)
        self.notify_join()
        if training:
            self.executor.check_finished()
            self.reducer.rebuild()
            if self.drop is not None:
                self.reducer.leave_out(self.drop.start(self.reducer.iteration + 1))
        if self._join_config.enable:
            self.backward_is_synced(joined=False)
        if self.schedule is not None:
            self.require_forward_param_sync = not local
        if self.buffers_due(after_forward=False):
            self._synchronise_buffers()
        if training:
            # Behind the buffers: those that the schedule which is left was to broadcast are, though the next keeps own.
            self._learn()
            self._begin(local=local)

    def _take_over_optimizers(self) -> None:
        # Before the first forward, as optimizers are put on parameters after the module is wrapped too.
        self._optimizers_taken_over = True
        if take_over_optimizers(self.reducer.model.tensors):
            hooked = "a communication hook or mixed_precision" if self.reducer.hooked else ""
            if given := hooked or ("join()" if self._join_config.enable else ""):
                what = f"_apply_optimizer_in_backward and {given} do not go together"
                raise OptionError(what, remedy="call optimizer.step() after backward instead")
            self.reducer.step_each_bucket(step_in_backward)

    @disable_compile
    def _end_forward(self, output: Any) -> Any:
        training, scheduled = torch.is_grad_enabled(), self.schedule is not None
        if training:
            self._end_module()
        if self.buffers_due(after_forward=True):
            self._synchronise_buffers()
        synced = training and self.require_backward_grad_sync
        if self.mixed is not None and not (synced or self.executor.expecting):
            self.mixed.restore()
        if synced:
            self.executor.expect(output, self.reducer.dropped)
        elif scheduled and training:
            self.executor.expecting = False  # in `no_sync` gradients add up
        self.require_forward_param_sync = synced
        # Under a reentrant checkpoint the first gradients come in a backward within backward, which ends before it:
        # what a scheme misses then is an error.
        if self._options.searching or self.executor.counting or (scheduled and self.static_graph):
            return tie(output, self.executor.backward_started, clone=self.clone_outputs)
        return output

    def _synchronise_buffers(self) -> None:
        self.reducer.await_also(self.buffer_sync.synchronise(self.buffers_source(), self.observer))
