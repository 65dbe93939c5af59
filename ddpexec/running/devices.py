"""A rank of several GPUs: its model's layers put on them in turn, and what passes between them copied."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ddpexec.capturing.fake import copy_as_fake, make_fakes
from ddpexec.capturing.models import Batch, TrainingModel
from ddpexec.ddp.parameters import ModelParameters, collect
from ddpexec.errors import OptionError
from ddpsim.schedules.pipeline import divide_stages
from ddpsim.schedules.units import modules_of, units_of

PLACE = "devices"


def rank_devices(count: int, first: torch.device) -> list[torch.device]:
    """Return the devices of a rank, consecutive GPUs from `first` on.

    Raises:
        OptionError: several devices of a rank that is on a CPU.
    """
    if count == 1:
        return [first]
    if first.type != "cuda":
        what = f"a rank of {count} devices computes on GPUs, this one is on {first}"
        raise OptionError(what, place=PLACE, remedy="predict it: `ddpsim workload split`, then `ddpsim predict`")
    begin = first.index or 0  # that there are as many is known where the rank has joined the others
    return [torch.device("cuda", begin + number) for number in range(count)]


def put_on_devices(model: TrainingModel, devices: Sequence[torch.device]) -> TrainingModel:
    """Return `model` with its layers on `devices`: consecutive ones, of which the part of most bytes is the smallest.

    Layers are repeated blocks and the modules outside them, in the order of registration. What a module is given is
    copied to its device before it computes, and the targets of a batch to where the loss is computed.

    Raises:
        OptionError: more devices than layers, a parameter of two modules, which may be on two devices, or layers that
            compute with another's parameters, as where a transformer's last ones are those of its embedding.
    """
    parameters = collect(model.module)
    parts = _cut(model.module, parameters, len(devices), model.name)
    where = {parameters.names[index]: devices[number] for number, part in enumerate(parts) for index in part}
    blocks = _blocks(model.module, parameters, parts)
    # A module without parameters stays with the layer before it; its buffers go there.
    here = devices[0]
    for name, module in model.module.named_modules():
        names = [f"{name}.{each}" if name else each for each, _ in module.named_parameters(recurse=False)]
        own = [where[each] for each in names if each in where]
        here = own[0] if own else here
        _move(module, here)
        if own:
            module.register_forward_pre_hook(_copy_to(here), with_kwargs=True)
    for block in blocks:
        device = next(where[each] for each in where if each.startswith(f"{block}."))
        model.module.get_submodule(block).register_forward_pre_hook(_copy_to(device), with_kwargs=True)

    def loss(output: object, batch: Batch) -> Tensor:
        device = output.device if isinstance(output, Tensor) else devices[-1]
        return model.loss(output, Batch(batch.inputs, tuple(each.to(device) for each in batch.targets)))

    placed = replace(model, _loss=loss)
    _check_forward(placed, devices[0])
    return placed


def check_module(parameters: ModelParameters, devices: Sequence[torch.device], place: str) -> None:
    """Refuse a module of one's own that is not on the devices of its rank, on each of them.

    Raises:
        OptionError: it is on others, or leaves one out.
    """
    used = parameters.devices
    if len(devices) > 1 and set(used) != set(devices):
        what = f"the module is on {', '.join(map(str, used))}, the rank has {', '.join(map(str, devices))}"
        raise OptionError(what, place=place, remedy="put layers on each of them, or give another number of `devices`")


def _cut(module: nn.Module, parameters: ModelParameters, count: int, name: str) -> list[list[int]]:
    refuse_tied(module, f" of {name}", "on two devices", PLACE, "run a model without")
    policy = parameters.policy
    root, units = units_of(policy)
    outside = [tuple(root[place] for place in each) for each in modules_of([policy[index] for index in root])]
    layers = sorted([*outside, *units])
    return divide_layers(layers, [each.size_bytes for each in policy], count, f"{PLACE} for")


def divide_layers(layers: Sequence[Sequence[int]], costs: Sequence[int], count: int, asked: str) -> list[list[int]]:
    """Return `count` runs of layers, as indices of their parameters, the dearest as cheap as can be.

    Raises:
        OptionError: fewer layers; `asked` is how to say what was asked for.
    """
    if count > len(layers):
        what = f"{count} {asked} a model of {len(layers)} layers"
        raise OptionError(what, place=asked.split()[0], remedy=f"give {len(layers)} at most")
    begins = divide_stages([float(sum(costs[i] for i in layer)) for layer in layers], count)
    ends = [*begins[1:], len(layers)]
    return [[i for layer in layers[begin:end] for i in layer] for begin, end in zip(begins, ends, strict=True)]


def refuse_tied(module: nn.Module, whose: str, where: str, place: str, remedy: str) -> None:
    """Raise OptionError for a parameter of two modules, of which each part would have a copy that goes its own way."""
    first: dict[nn.Parameter, str] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if (known := first.setdefault(parameter, name)) != name:
            what = f"{known} and {name}{whose} are one parameter, and may be {where}"
            raise OptionError(what, place=place, remedy=remedy)


def _check_forward(model: TrainingModel, device: torch.device) -> None:
    """Let tensors without memory go through the model, which know what device they are on.

    Raises:
        OptionError: it computes with what is on two devices.
    """
    with make_fakes() as mode, torch.no_grad():
        module, batch = copy_as_fake(model.module, model.make_batch(2, device, None), mode)
        assert isinstance(batch, Batch)
        try:
            module(*batch.inputs)
        except RuntimeError as error:
            if "device" not in str(error):
                raise
            words = " ".join(str(error).split())[:160]
            what = f"{model.name} computes with what is on two devices: {words}"
            raise OptionError(what, place=PLACE, remedy="run a model whose layers compute with their own") from error


def _blocks(module: nn.Module, parameters: ModelParameters, parts: Sequence[Sequence[int]]) -> list[str]:
    """Return the modules that lie on one device as a whole, outermost ones, but for those with parameters of their own.

    What such a module is given is used by several of its layers, as what a residual is added to.
    """
    number = {parameters.names[index]: part for part, each in enumerate(parts) for index in each}
    blocks: list[str] = []
    for name, each in module.named_modules():
        inside = {number[full] for full in number if full.startswith(f"{name}.")} if name else set(number.values())
        covered = any(name.startswith(f"{other}.") for other in blocks)
        if name and len(inside) == 1 and not covered and not list(each.parameters(recurse=False)):
            blocks.append(name)
    return blocks


def _move(module: nn.Module, device: torch.device) -> None:
    """Move what a module has of its own; a parameter that moves is another, as its type of device may be."""
    for name, parameter in list(module.named_parameters(recurse=False)):
        if parameter.device != device:
            moved = nn.Parameter(parameter.detach().to(device), requires_grad=parameter.requires_grad)
            module.register_parameter(name, moved)
    for name, buffer in module.named_buffers(recurse=False):
        setattr(module, name, buffer.to(device))


Hook = Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], tuple[tuple[Any, ...], dict[str, Any]]]


def _copy_to(device: torch.device) -> Hook:
    def copied(value: Any) -> Any:
        return value.to(device, non_blocking=True) if isinstance(value, Tensor) else value

    def hook(
        module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return tuple(map(copied, inputs)), {name: copied(value) for name, value in named.items()}

    return hook
