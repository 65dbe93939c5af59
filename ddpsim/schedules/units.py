"""Which parameters are gathered together: a model's repeated blocks, and the rest, by the names of its parameters."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

from ddpsim.bucketing.assign import Parameter, in_registration_order
from ddpsim.common.errors import PlanError

_NUMBERED = re.compile(r"(?:.*_)?\d+")
"""A component of a name that numbers a module among its like: the `3` of `h.3.ln_1`, `encoder_layer_3`."""


Wrapped = tuple[str, ...]
"""Names of the modules that `fully_shard` is called on, beside the root; of each component `*` stands for any."""


def units_of(
    parameters: Sequence[Parameter], wrap: Wrapped | None = None
) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """Return the root unit and the units of the blocks, as `fully_shard` on every block and the root makes them.

    A block is the outermost numbered module that has a sibling: `transformer.h.0`, `encoder.layer.3`, `layer1.2`,
    `encoder.layers.encoder_layer_5`. What lies in none belongs to the root, whose unit is empty where nothing does.

    Args:
        wrap: modules to take instead of the blocks.

    Raises:
        PlanError: as `blocks_of`.

    Returns:
        Registration indices of each; blocks by their first.

    >>> units_of([Parameter(name, (1,)) for name in ("wte.weight", "h.0.a", "h.0.b", "h.1.a", "ln_f.weight")])
    ((0, 4), [(1, 2), (3,)])
    """
    units = list(blocks_of(parameters, wrap).values())
    inside = {index for unit in units for index in unit}
    return tuple(index for index, _ in in_registration_order(parameters) if index not in inside), units


def blocks_of(parameters: Sequence[Parameter], wrap: Wrapped | None = None) -> dict[str, tuple[int, ...]]:
    """Return the blocks' units by the name of the block's module, as `units_of` has them.

    Of wrapped modules inside each other each has what the inner ones have not.

    Args:
        wrap: modules to take instead of the blocks.

    Raises:
        PlanError: a name to wrap that no module has.

    >>> blocks_of([Parameter(name, (1,)) for name in ("wte.weight", "h.0.a", "h.0.b", "h.1.a", "ln_f.weight")])
    {'h.0': (1, 2), 'h.1': (3,)}
    """
    if wrap is not None:
        return _group_wrapped(parameters, wrap)
    blocks: dict[str, list[int]] = {}
    lists: dict[str, set[str]] = {}
    for index, parameter in in_registration_order(parameters):
        block = _block(parameter.name)
        if block is not None:
            blocks.setdefault(block, []).append(index)
            lists.setdefault(_list(block), set()).add(block)
    return {name: tuple(members) for name, members in blocks.items() if len(lists[_list(name)]) > 1}


def _group_wrapped(parameters: Sequence[Parameter], wrap: Wrapped) -> dict[str, tuple[int, ...]]:
    """Return the parameters of each module that one of `wrap` names, those of modules inside it left out."""
    units: dict[str, list[int]] = {}
    met: set[str] = set()
    for index, parameter in in_registration_order(parameters):
        modules = parameter.name.split(".")[:-1]
        owner = None
        for depth in range(1, len(modules) + 1):
            fitting = [name for name in wrap if _fits(modules[:depth], name.split("."))]
            met.update(fitting)
            owner = ".".join(modules[:depth]) if fitting else owner
        if owner is not None:
            units.setdefault(owner, []).append(index)
    if unmet := [name for name in wrap if name not in met]:
        remedy = "name modules, with * for a number: encoder.layer.*"
        raise PlanError(f"no module with parameters is called {unmet[0]!r}", place="wrap", remedy=remedy)
    return {name: tuple(members) for name, members in units.items()}


def _fits(modules: Sequence[str], pattern: Sequence[str]) -> bool:
    return len(modules) == len(pattern) and all(map(fnmatchcase, modules, pattern))


def list_below(parameters: Sequence[Parameter], unit: tuple[int, ...], blocks: Sequence[str]) -> tuple[int, ...]:
    """Return all parameters of the module whose unit this is, those of wrapped modules inside it too.

    Args:
        blocks: names of the modules that have a unit.
    """
    owners = [name for name in blocks if parameters[unit[0]].name.startswith(f"{name}.")]
    if not owners:
        return unit
    owner = max(owners, key=len)
    return tuple(
        index for index, parameter in in_registration_order(parameters) if parameter.name.startswith(f"{owner}.")
    )


def modules_of(parameters: Sequence[Parameter]) -> list[tuple[int, ...]]:
    """Return the parameters of each module that has some of its own, modules by their first."""
    modules: dict[str, list[int]] = {}
    for index, parameter in in_registration_order(parameters):
        modules.setdefault(parameter.name.rpartition(".")[0], []).append(index)
    return [tuple(members) for members in modules.values()]


def _block(name: str) -> str | None:
    """Return the name of the outermost numbered module that the parameter `name` is in."""
    modules = name.split(".")[:-1]
    for depth, module in enumerate(modules, 1):
        if _NUMBERED.fullmatch(module):
            return ".".join(modules[:depth])
    return None


def _list(block: str) -> str:
    """Return what a block and its siblings have in common: `h.` of `h.3`, `layers.encoder_layer_` of the sixth."""
    return block.rstrip("0123456789")
