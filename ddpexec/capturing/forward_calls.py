"""When forward first calls the modules that own parameters, and so needs each parameter at the latest."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

Moment = TypeVar("Moment")

_TRAINED = 0
"""Number of the module that is trained: it is called when forward starts."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a parameter is registered: the module that owns it and those around it, innermost first, by number.

    Attributes:
        chain: ends with the module that is trained.
        leaf: whether the owner has no modules of its own, so that its call reads the parameter.
    """

    chain: tuple[int, ...]
    leaf: bool


@dataclass(frozen=True, slots=True)
class FirstUse(Generic[Moment]):
    """When forward first needs a parameter.

    Attributes:
        moment: of a call.
        around: whether that is the call of a module around the parameter's owner, which is not called itself.
    """

    moment: Moment
    around: bool


class ForwardCalls(Generic[Moment]):
    """Notes the first call of each module in a forward, by pre-hooks.

    Hooks do nothing where torch.compile traces them: of a compiled part the call of what is around it is seen.

    Args:
        module: that is trained.
        parameters: in registration order.
        now: returns this moment.
        trained: how many of them take a gradient; the frozen ones follow. None is all.
    """

    def __init__(
        self, module: nn.Module, parameters: Sequence[Tensor], now: Callable[[], Moment], trained: int | None = None
    ) -> None:
        self._now = now
        self._trained = len(parameters) if trained is None else trained
        self._seen: dict[int, Moment] | None = None
        self._handles: list[Any] = []
        paths = dict(module.named_modules(remove_duplicate=False))
        self._numbers = {each: number for number, each in enumerate(dict.fromkeys(paths.values()))}
        self._places: list[list[_Place]] = [[] for _ in parameters]
        indices = {parameter: index for index, parameter in enumerate(parameters)}
        for path, owner in paths.items():
            place = _Place(
                tuple(self._numbers[paths[each]] for each in _list_paths_around(path)), not any(owner.children())
            )
            for tensor in owner.parameters(recurse=False):
                if tensor in indices:
                    self._places[indices[tensor]].append(place)

    def install(self) -> None:
        """Put the hooks in place, on modules that own parameters and on those around them."""
        needed = {number for places in self._places for place in places for number in place.chain} - {_TRAINED}
        for module, number in self._numbers.items():
            if number in needed:
                self._handles.append(module.register_forward_pre_hook(self._hook(number)))

    def remove(self) -> None:
        """Take every hook away again."""
        while self._handles:
            self._handles.pop().remove()

    def begin(self, moment: Moment) -> Mapping[int, Moment]:
        """Begin a forward; what is returned fills with the moment of each module's first call until `end`."""
        self._seen = {_TRAINED: moment}
        return self._seen

    def end(self) -> None:
        """End the forward: calls from here on, as those of a checkpoint in backward, are not noted."""
        self._seen = None

    def find_needs(self, called: Mapping[int, Moment], gradients: Collection[int]) -> list[FirstUse[Moment] | None]:
        """Return when a forward first needs each parameter, by registration index; None where it does not.

        The call of its owner, or where that is not called the nearest call around it; of a parameter with several
        owners the earliest. One without a gradient counts where a module that holds nothing else was called: any other
        may leave it alone, unless it is frozen.

        Args:
            called: what `begin` returned.
            gradients: registration indices of the parameters that backward reached.
        """
        turns = {number: turn for turn, number in enumerate(called)}
        needs: list[FirstUse[Moment] | None] = []
        for index, places in enumerate(self._places):
            near = [(place, next(number for number in place.chain if number in called)) for place in places]
            if index not in gradients:
                frozen = index >= self._trained
                near = [
                    (place, number) for place, number in near if (number == place.chain[0] if place.leaf else frozen)
                ]
            first = min(near, key=lambda pair: turns[pair[1]], default=None)
            needs.append(None if first is None else FirstUse(called[first[1]], first[1] != first[0].chain[0]))
        return needs

    def _hook(self, number: int) -> Callable[[nn.Module, Any], None]:
        now = self._now

        def first_call(module: nn.Module, args: Any) -> None:
            if torch.compiler.is_compiling():
                return
            seen = self._seen
            if seen is not None and number not in seen:
                seen[number] = now()

        return first_call


def _list_paths_around(path: str) -> list[str]:
    """Return a module's path and those around it: `a.b`, `a`, and the empty one of the module that is trained."""
    names = path.split(".") if path else []
    return [".".join(names[:length]) for length in range(len(names), -1, -1)]
