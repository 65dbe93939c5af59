"""Count one training step: operators by phase, where gradients become complete, what stays alive, which optimizer.

Start with `StepCounter`, a dispatch mode: every operator of the step passes it, and a `StepCounts` holds the result.

A compiler makes one kernel of memory-bound operators in a row and leaves the others to libraries. `Intermediates`
counts the bytes that such a row need not write and read again. `Edges` counts what a graph break would cost: a tensor
is never written where all its readers can be in its kernel, that is, are memory-bound and wait for no library's kernel
that the tensor went into; a graph that ends between them writes it, and the next one reads it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from ddpexec.capturing.attention import FusedAttention
from ddpexec.capturing.describe import compiler_of, describe_buffers, find_calling_compiler, is_compiled
from ddpexec.capturing.fixed import FixedBytes
from ddpexec.capturing.left_out import (
    describe_calls,
    describe_synchronised_norms,
    is_collective,
    pretended_group,
    size_of,
)
from ddpexec.capturing.live import LiveBytes, fp32_bytes, own_bytes, storage_key
from ddpexec.capturing.operators import keeps_fp32, operator_of, tensors_in
from ddpexec.capturing.phases import Phases, batch_size_of, precision_of
from ddpexec.ddp.parameters import collect
from ddpsim.common.errors import WorkloadError
from ddpsim.workload.estimate import ModelShape
from ddpsim.workload.operators import Operator


@dataclass(slots=True)
class _Output:
    """A tensor: which operators make it and read it last, and whether all its readers fit into its maker's kernel.

    Attributes:
        bit: of its own in sets of tensors.
        before: the set of tensors that it rests on, and itself.
        waits: those of them whose way here leads through a library's kernel.
    """

    by: int
    last: int
    size_bytes: int
    fused: bool
    bit: int
    before: int
    waits: int


@dataclass(slots=True)
class Edges:
    """Follows which tensors operators of forward make, and which operator is the last to read each.

    Args:
        element_bytes: of a tensor.
    """

    element_bytes: Callable[[Tensor], int]
    _alive: dict[int, _Output] = field(default_factory=dict)
    """By storage."""
    _all: list[_Output] = field(default_factory=list)

    def note(self, number: int, read: Sequence[Tensor], written: Sequence[Tensor], *, memory: bool = True) -> None:
        """Note operator `number`, which reads and writes tensors; where not `memory` it is a library's kernel."""
        known = [output for each in read if (output := self._alive.get(storage_key(each) or -1)) is not None]
        # Sets of tensors are bits of integers: a union over all inputs is one operation, for steps of thousands of
        # operators.
        before, waits = 0, 0
        for output in known:
            before |= output.before
            waits |= output.waits
        for output in known:
            output.last = number
            # A reader stays in the tensor's kernel only if it is memory-bound itself, and none of its inputs went from
            # this tensor through a library's kernel: that one would have to run in the middle.
            output.fused &= memory and not waits & output.bit
        for tensor in written:
            key = storage_key(tensor)
            if key is None or key in self._alive:
                continue
            size_bytes, bit = tensor.numel() * self.element_bytes(tensor), 1 << len(self._all)
            output = _Output(number, number, size_bytes, memory, bit, before | bit, waits if memory else before)
            self._alive[key] = output
            self._all.append(output)
            # Storages are freed and their addresses used again; a new tensor there is another one.
            weakref.finalize(tensor.untyped_storage(), self._alive.pop, key, None)

    def crossing(self, operators: int) -> list[float]:
        """Return for each operator the bytes made earlier that it or later ones read in the same kernel."""
        changes = [0.0] * (operators + 1)
        for output in self._all:
            if output.fused and output.last > output.by:
                changes[output.by + 1] += output.size_bytes
                changes[output.last + 1] -= output.size_bytes
        crossing, now = [], 0.0
        for change in changes[:operators]:
            now += change
            crossing.append(now)
        return crossing


@dataclass(slots=True)
class Intermediates:
    """Follows operators in launch order and knows what the run of memory-bound ones in hand has written.

    A tensor of the run that the next of its operators reads is not read from memory, and at the first such read its
    write is left out too; one that none of them reads stays written.
    """

    _written: dict[int | None, bool] = field(default_factory=dict)
    """By storage, whether a read has been seen."""

    def end_run(self) -> None:
        """Begin a new run."""
        self._written.clear()

    def fused_bytes(self, kind: str, read: Sequence[Tensor], written: Sequence[Tensor]) -> float:
        """Return what fusing the operator with those before it in its run leaves out; see `Operator.fused_bytes`."""
        if kind != "memory":
            self.end_run()
            return 0.0
        left_out = 0.0
        for tensor in {storage_key(each): each for each in read}.values():
            key = storage_key(tensor)
            if key is not None and key in self._written:
                size = float(tensor.numel() * fp32_bytes(tensor))
                left_out += size if self._written[key] else 2 * size
                self._written[key] = True
        for tensor in written:
            if (key := storage_key(tensor)) is not None:
                self._written[key] = False
                weakref.finalize(tensor.untyped_storage(), self._written.pop, key, None)
        return left_out


_NORMS = ("norm", "linalg_vector_norm", "_foreach_norm")
_READS_VALUE = "_local_scalar_dense"
_WHERE = {"forward": "after_forward", "gap": "after_backward", "end": "after_optimizer"}


@dataclass(slots=True)
class StepCounts:
    """What a step was seen to do.

    Attributes:
        forward, backward: operators; `gap` are those between backward and the optimizer.
        forward_use: number of the forward operator that first reads a parameter, by registration index.
        batch_size: first dimension of what forward was given.
        precision: the step's own.
        optimizers: as `optimizer_name` calls them.
        synchronises: phases after which the host read a value of the device's.
        compiled: whether torch.compile compiles it, and `compiler` by what; see `ModelShape`.
        sent: bytes of the collectives that the step calls itself, by name.
        channels_last: whether a convolution takes images or weights whose channels come last.
    """

    forward: list[Operator] = field(default_factory=list)
    backward: list[Operator] = field(default_factory=list)
    gap: list[str] = field(default_factory=list)
    forward_use: dict[int, int] = field(default_factory=dict)
    batch_size: int | None = None
    precision: str = "fp32"
    optimizers: list[str] = field(default_factory=list)
    synchronises: set[str] = field(default_factory=set)
    compiled: bool = False
    compiler: str | None = None
    sent: dict[str, list[int]] = field(default_factory=dict)
    channels_last: bool = False

    @property
    def optimizer_kind(self) -> str | None:
        """The optimizers as one text; see `ModelShape`."""
        clip = "+clip" if any(name in _NORMS for name in self.gap) else ""
        return ",".join(dict.fromkeys(self.optimizers)) + clip if self.optimizers else None


class StepCounter(TorchDispatchMode):
    """Counts what a module's training step dispatches, while its context is entered.

    Args:
        module: that is trained.
        real: whether tensors have values; without, attention computes nothing and the optimizer changes nothing, and
            values that the host reads after backward are 1.
        as_is: whether 16-bit tensors count as they are, rather than as in fp32.
        original: of which `module` is a copy, and which torch.compile was called on; None is `module`.
    """

    def __init__(
        self, module: nn.Module, *, real: bool = False, as_is: bool = False, original: nn.Module | None = None
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counted, self.live = StepCounts(), LiveBytes(as_is=as_is)
        self._original, self._intermediates = original or module, Intermediates()
        self._edges = Edges(own_bytes if as_is else fp32_bytes)
        self.parameters = collect(module)
        if not self.parameters.tensors:
            raise WorkloadError("no parameter of the module needs a gradient", place="estimate")
        self._module, self._real = module, real
        self._phase = ""
        self._owners: dict[int | None, list[int]] = {}
        for index, parameter in enumerate((*self.parameters.tensors, *self.parameters.frozen_tensors)):
            self._owners.setdefault(storage_key(parameter), []).append(index)
        self._element_bytes = own_bytes if as_is else fp32_bytes
        self._fixed = FixedBytes(module, self._element_bytes)

    @contextmanager
    def watch(self) -> Iterator[StepCounter]:
        """Count one step within the context.

        Raises:
            WorkloadError: a step without exactly one forward and one backward, or without any gradient.
        """
        phases = Phases(self._module, self.parameters.tensors, self)
        with ExitStack() as stack:
            stack.callback(self.live.close)
            phases.install()
            stack.callback(phases.remove)
            stack.enter_context(self._optimizer_seen())
            stack.enter_context(self)
            if not self._real:
                stack.enter_context(FusedAttention(self._count, self._element_bytes))
                stack.enter_context(pretended_group())
            yield self
            phases.end_step()
        if not any(operator.gradients for operator in self.counted.backward):
            remedy = "let backward start from a loss that depends on the module's parameters"
            raise WorkloadError("no gradient came to any parameter of the module", place="backward", remedy=remedy)

    def shape(self, name: str, batch_size: int, sample: str) -> ModelShape:
        """Return what was counted."""
        counted = self.counted
        return ModelShape(
            name,
            batch_size,
            sample,
            self.parameters.policy,
            describe_buffers(self._module),
            tuple(replace(each, edge_bytes=crossing) for each, crossing in self._with_edges()),
            tuple(self._backward()),
            forward_use=tuple(map(counted.forward_use.get, range(len(self.parameters.all_policy)))),
            activations=self.live.peak,
            optimizer_kind=counted.optimizer_kind,
            synchronises=tuple(point for point in _WHERE.values() if point in counted.synchronises),
            compiled=counted.compiled,
            compiler=counted.compiler,
            left_out=tuple(self._left_out()),
            frozen=self.parameters.frozen,
        )

    def _left_out(self) -> Iterator[str]:
        yield from describe_synchronised_norms(self._module)
        yield from describe_calls(self.counted.sent)
        if self.counted.channels_last:
            yield (
                "convolutions take images with their channels last, and are priced as with channels first: the layout "
                "is not priced, though on matrix units it saves turning tensors round"
            )

    def _backward(self) -> Iterator[Operator]:
        """Yield the operators of backward with what of their traffic stays with another batch."""
        for number, operator in enumerate(self.counted.backward):
            yield replace(operator, fixed_bytes=self._fixed.bytes.get(number, operator.fixed_bytes))

    def on_forward(self, inputs: Sequence[object]) -> None:
        """Count from here on."""
        self.counted.batch_size = batch_size_of(inputs)
        on_gpus = torch.is_autocast_enabled("cuda")  # whatever the tensors are on that are counted
        self.counted.precision = (
            "amp" if on_gpus else precision_of((*self.parameters.tensors, *self.parameters.frozen_tensors))
        )
        called, caller = find_calling_compiler()
        self.counted.compiled = called or is_compiled(self._original)
        self.counted.compiler = caller or compiler_of(self._original)
        self._phase = "forward"

    def on_backward(self) -> None:
        """Count as backward from here on."""
        self._intermediates.end_run()
        self._phase = "backward"

    def on_gradient(self, index: int, parameter: Tensor) -> None:
        """Give the gradient to the last operator before it; gradients start as None, so accumulating is free."""
        operators = self.counted.backward
        if not operators:
            operators.append(Operator("memory", 0.0, 0.0))
        operators[-1] = replace(operators[-1], gradients=(*operators[-1].gradients, index))
        self._fixed.is_gradient(parameter.grad)
        if parameter.grad is not None:
            self.live.drop(storage_key(parameter.grad))

    def on_backward_end(self) -> None:
        """Count as neither from here on."""
        self._phase = "gap"

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "prim":  # a tensor's device, asked for by everything
            return func(*args, **kwargs)
        name = func._schema.name.partition("::")[2]
        if is_collective(func.namespace, name):
            self.counted.sent.setdefault(name.strip("_"), []).append(size_of(tensors_in([args, kwargs])))
            return func(*args, **kwargs)
        if name == "convolution":
            self.counted.channels_last |= any(map(_has_channels_last, args[:2]))
        if name == _READS_VALUE and self._phase in _WHERE:
            self.counted.synchronises.add(_WHERE[self._phase])
            if not self._real and self._phase != "forward":
                return _make_one(args[0])
        out = func(*args, **kwargs)
        if self._phase in ("forward", "backward"):
            read = tensors_in([args, kwargs])
            if not func.is_view:  # a deep copy of a fake has a storage of its own, that its views do not share
                alone = self._fixed.is_made_of_parameters(read)
                self.live.count_made(tensors_in(out), read, fp32=keeps_fp32(func), fixed=alone)
            if operator := operator_of(func, args, kwargs, out, self._element_bytes):
                fixed = self._fixed.of(func, read, tensors_in(out))
                if self._phase == "backward":
                    self._fixed.note(len(self.counted.backward), func, fixed, operator.flops, read, tensors_in(out))
                self._count(replace(operator, fixed_bytes=fixed), read, tensors_in(out))
        elif self._phase == "gap":
            self.counted.gap.append(name)
        return out

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled meanwhile, and torch's way to say so is slow

    def _with_edges(self) -> Iterator[tuple[Operator, float]]:
        forward = self.counted.forward
        return zip(forward, self._edges.crossing(len(forward)), strict=True)

    def _count(self, operator: Operator, read: Sequence[Tensor], written: Sequence[Tensor] = ()) -> None:
        if self._phase in ("forward", "backward"):
            self._note_use(read)
            if self._phase == "forward":
                self._edges.note(len(self.counted.forward), read, written, memory=operator.kind == "memory")
            if self.counted.compiler is not None:
                left_out = self._intermediates.fused_bytes(operator.kind, read, written)
                operator = replace(operator, fused_bytes=left_out)
            getattr(self.counted, self._phase).append(operator)

    def _note_use(self, read: Sequence[Tensor]) -> None:
        if self._phase != "forward":
            return
        for tensor in read:
            for index in self._owners.get(storage_key(tensor), ()):
                self.counted.forward_use.setdefault(index, len(self.counted.forward))

    @contextmanager
    def _optimizer_seen(self) -> Iterator[None]:
        """Note each optimizer that steps; without real tensors it finds no parameters, and so changes nothing."""
        hidden: list[tuple[dict[str, Any], list[Any]]] = []

        def restore() -> None:
            while hidden:
                group, parameters = hidden.pop()
                group["params"] = parameters

        def before(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
            self._phase = "optimizer"
            self.counted.optimizers.append(optimizer_name(optimizer))
            if not self._real:
                for group in optimizer.param_groups:
                    hidden.append((group, group["params"]))
                    group["params"] = []

        def after(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
            self._phase = "end"
            restore()

        handles = register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)
        try:
            yield
        finally:
            restore()
            for handle in handles:
                handle.remove()


def optimizer_name(optimizer: torch.optim.Optimizer) -> str:
    """Return what `ModelShape.optimizer_kind` calls an optimizer."""
    options = optimizer.defaults
    name = type(optimizer).__name__.lower()
    if name == "sgd" and options.get("momentum"):
        name = "momentum"
    if options.get("fused"):
        return f"{name}-fused"
    loop = name in ("sgd", "momentum") or options.get("foreach") is False
    return name if loop or "foreach" not in options else f"{name}-foreach"


def _has_channels_last(tensor: Tensor) -> bool:
    layout = {4: torch.channels_last, 5: torch.channels_last_3d}.get(tensor.dim())
    return layout is not None and tensor.is_contiguous(memory_format=layout) and not tensor.is_contiguous()


def _make_one(tensor: Tensor) -> bool | int | float | complex:
    """Return 1 as the kind of number that the tensor holds."""
    kinds = ((tensor.is_floating_point(), 1.0), (tensor.is_complex(), 1 + 0j), (tensor.dtype == torch.bool, True))
    return next((one for is_kind, one in kinds if is_kind), 1)
