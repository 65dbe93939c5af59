"""Operators of one training step without running it: of a shipped model, a user's step, or a module with a batch.

Start with `model_shape`, `step_shape` and `module_shape`; all count a step on fake tensors (`capturing.counting`), and
where that fails on real ones. Activation checkpointing is an option of an estimate: each of a model's equal layers
(`layers_of`) counts its forward again in backward.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ddpexec.capturing.autocast import autocasting, watch_dtypes
from ddpexec.capturing.counting import StepCounter, optimizer_name
from ddpexec.capturing.fake import copy_as_fake, make_fakes
from ddpexec.capturing.models import build
from ddpexec.capturing.models.training import TrainingModel
from ddpexec.capturing.own_step import Factory, OwnStep, call_builder, factory
from ddpexec.capturing.phases import name_autocast_dtype
from ddpsim.common.errors import InputError
from ddpsim.workload.estimate import ModelShape
from ddpsim.workload.operators import PhasesUnderAutocast

_LAYERS = 2
"""From so many equal modules in a row on they are taken for the layers of a model; the longest such row is."""


def layers_of(module: nn.Module) -> nn.ModuleList | nn.Sequential | None:
    """Return the longest list of modules of one class within `module`; None where there is none of two and more."""
    layers: nn.ModuleList | nn.Sequential | None = None
    for each in module.modules():
        if not isinstance(each, nn.ModuleList | nn.Sequential) or len({type(layer) for layer in each}) != 1:
            continue
        if len(each) >= max(_LAYERS, 1 + (0 if layers is None else len(layers))):
            layers = each
    return layers


def checkpoint_layers(module: nn.Module) -> nn.Module:
    """Let each layer of `module` keep its inputs alone and compute itself again in backward; returns `module`.

    Raises:
        InputError: a module without a list of equal layers.
    """
    layers = layers_of(module)
    if layers is None:
        what = f"{type(module).__name__} has no list of equal layers"
        remedy = "call torch.utils.checkpoint in the module itself; a step that does is counted as it is"
        raise InputError(what, place="--activation-checkpointing", remedy=remedy)
    for layer in layers:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False)
    return module


FAKE = "on fake tensors, without values"
REAL = "in one real step on this machine's processor"

_LONGEST = 200
"""Characters of a warning that a note repeats; chosen by hand."""
_NO_AUTOCAST = "Disabling autocast"

Note = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class OwnShape:
    """A user's step as operators, and the precision it computes in."""

    shape: ModelShape
    precision: str


def model_shape(name: str, batch_size: int | None = None, *, checkpointing: bool = False) -> ModelShape:
    """Return the operators of one training step of the shipped model `name`, with or without checkpointed layers."""

    def made(device: str) -> TrainingModel:
        model = build(name, device)
        if checkpointing:
            checkpoint_layers(model.module)
        return model

    return count_training_step(made("meta"), batch_size, lambda: made("cpu"))


def count_training_step(
    model: TrainingModel, batch_size: int | None, remake: Callable[[], TrainingModel]
) -> ModelShape:
    """Return the operators of one training step of `model`, which is on the meta device, as it is and under autocast.

    Args:
        model: to be counted.
        batch_size: samples a step; None is the model's own.
        remake: makes the same model on the processor, to be counted under autocast.
    """
    shape = shape_of(model, batch_size)

    def make() -> OwnStep:
        model = remake()
        batch = model.make_batch(batch_size, "cpu")

        def step() -> None:
            with torch.autocast("cuda"):
                loss = model.loss(model.module(*batch.inputs), batch)
            loss.backward()  # type: ignore[no-untyped-call]

        return OwnStep(model.name, model.module, step)

    return _with_autocast(shape, make)


def shape_of(model: TrainingModel, batch_size: int | None = None) -> ModelShape:
    """Return the operators of one training step of a model on the meta device, the optimizer left out."""
    batch = model.make_batch(batch_size, "meta")
    counter = StepCounter(model.module)
    with counter.watch():
        model.loss(model.module(*batch.inputs), batch).backward()  # type: ignore[no-untyped-call]
    shape = counter.shape(model.name, batch_size or model.batch_size, model.sample)
    return replace(shape, optimizer_kind=optimizer_name(model.make_optimizer()))


def step_shape(
    step: str | Factory,
    *,
    batch_size: int | None = None,
    autocast: bool = False,
    checkpointing: bool = False,
    note: Note = lambda message: None,
) -> OwnShape:
    """Return the operators of a user's own training step.

    The function runs on fake tensors: they have shapes and no memory, so that a model of any size is made at once.
    Where something needs values (control flow that depends on them, `.item()` in forward, numpy), it runs again for
    one real step on the CPU.

    Args:
        step: `package.module:function`, as `capture_step` takes it, or the function itself.
        batch_size: samples a step; by default the first dimension of the first tensor given to forward.
        autocast: whether forward is to be counted under autocast too, where the step does not ask for it itself.
        checkpointing: whether the module's equal layers are to be computed again in backward.
        note: told where the real step had to be taken, and why.

    Raises:
        InputError: the function cannot be imported, raises, or returns something else.
        WorkloadError: a step without exactly one forward and one backward, or without any gradient.
    """
    path = step if isinstance(step, str) else f"{step.__module__}:{getattr(step, '__qualname__', 'step')}"
    with watch_dtypes():  # an autocast may be made where its module is imported
        function = factory(step) if isinstance(step, str) else step

    def make() -> OwnStep:
        own = call_builder(function, path)
        if checkpointing:
            checkpoint_layers(own.module)
        return own

    def fake() -> OwnShape:
        with make_fakes():
            counted = _count_step(make, batch_size, real=False)
        if not autocast and counted.precision != "amp":
            return counted
        return replace(counted, shape=_with_autocast(counted.shape, make, forced=counted.precision != "amp"))

    return _fake_or_real(fake, lambda: _count_step(make, batch_size, real=True), note)


def module_shape(
    module: nn.Module,
    batch: object,
    *,
    loss: Callable[[Any], Tensor] | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    name: str | None = None,
    batch_size: int | None = None,
    note: Note = lambda message: None,
) -> OwnShape:
    """Return the operators of one training step of `module` on `batch`; neither is changed.

    Args:
        module: on any device, `meta` among them.
        batch: a tensor; a tuple or list of positional arguments; or a mapping of keyword arguments.
        loss: makes one number of what the module returns; by default its `loss` where it has one, else the sum of the
            tensor it returns.
        optimizer: the one that will train it; it takes no step.
        name: of the workload; by default the module's class.
        batch_size: samples a batch; by default the first dimension of the first tensor in it.
        note: told where a real step had to be taken, and why.

    Raises:
        InputError: the module raises, or what it returns has no loss.
        WorkloadError: no gradient came to any parameter.
    """
    path = name or type(module).__name__.lower()

    def own(of: nn.Module, inputs: object) -> OwnStep:
        def step() -> None:
            (loss or _loss)(_call(of, inputs)).backward()  # type: ignore[no-untyped-call]

        return OwnStep(path, of, step)

    def fake() -> OwnShape:
        with make_fakes() as mode:
            return _count_step(lambda: own(*copy_as_fake(module, batch, mode)), batch_size, real=False, original=module)

    def real() -> OwnShape:
        return _count_step(lambda: own(copy.deepcopy(module), batch), batch_size, real=True, original=module)

    shape = _fake_or_real(fake, real, note)
    kind = None if optimizer is None else optimizer_name(optimizer)
    return replace(shape, shape=replace(shape.shape, optimizer_kind=kind))


def _count_step(
    make: Callable[[], OwnStep], batch_size: int | None, *, real: bool, original: nn.Module | None = None
) -> OwnShape:
    with _autocast_on_gpus() as wanted, watch_dtypes() as dtypes:
        own = make()
        for parameter in own.module.parameters():
            parameter.grad = None
        counter = StepCounter(own.module, real=real, original=original)
        with counter.watch():
            own.train()
    size = batch_size or counter.counted.batch_size
    if size is None:
        what, remedy = "forward is given no tensor to take it from", "give --batch-size"
        raise InputError(what, place="batch_size", remedy=remedy)
    shape = counter.shape(own.name, size, f"as {own.path} makes it")
    precision = "amp" if wanted else counter.counted.precision
    if precision == "amp":
        shape = replace(shape, autocast_dtype=name_autocast_dtype(dtypes))
    return OwnShape(replace(shape, counted=REAL if real else FAKE), precision)


def _with_autocast(shape: ModelShape, make: Callable[[], OwnStep], *, forced: bool = False) -> ModelShape:
    """Return `shape` with the kernels of the step under CUDA's autocast and the bytes that it keeps alive there.

    Args:
        make: makes the step, on fake tensors.
        forced: whether forward asks for no autocast itself.
    """
    with autocasting(), make_fakes():
        own = make()
        for parameter in own.module.parameters():
            parameter.grad = None
        if forced:
            own.module.forward = torch.autocast("cuda")(own.module.forward)
        counter = StepCounter(own.module, as_is=True)
        with counter.watch():
            own.train()
    under = counter.shape(shape.name, shape.batch_size, shape.sample)
    assert shape.activations is not None
    assert under.activations is not None
    return replace(
        shape,
        activations=shape.activations.with_amp(under.activations),
        amp=PhasesUnderAutocast(under.forward, under.backward, under.forward_use),
    )


def _fake_or_real(fake: Callable[[], OwnShape], real: Callable[[], OwnShape], note: Note) -> OwnShape:
    """Return `fake()`, or where fake tensors do not do `real()`, which raises what is wrong with the step itself."""
    try:
        with torch.compiler.set_stance("force_eager"):
            return fake()
    except Exception as error:
        if isinstance(error, InputError) and error.__cause__ is None:
            raise
        reason = " ".join(str(error.__cause__ or error).split())[:_LONGEST]
    with torch.compiler.set_stance("force_eager"):
        shape = real()
    note(f"the step needs real tensors ({reason}): counted {REAL}")
    return replace(shape, shape=replace(shape.shape, counted=f"{REAL}; fake tensors did not do: {reason}"))


@contextmanager
def _autocast_on_gpus() -> Iterator[list[str]]:
    """Yield a list that holds, after the context, a note where a step enters CUDA's autocast on a machine without GPUs.

    torch warns, and goes on without; the step would do with it where it is to run.
    """
    wanted: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield wanted
    for warning in caught:
        if _NO_AUTOCAST in str(warning.message):
            wanted.append(str(warning.message))
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


def _call(module: nn.Module, batch: object) -> object:
    if isinstance(batch, Mapping):
        return module(**batch)
    return module(*batch) if isinstance(batch, tuple | list) else module(batch)


def _loss(output: object) -> Tensor:
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    loss = output if loss is None else loss
    if not isinstance(loss, Tensor):
        remedy = "give loss=, a function of what the module returns"
        raise InputError(f"the module returns {type(output).__name__}, without a loss", place="loss", remedy=remedy)
    return loss.sum()
