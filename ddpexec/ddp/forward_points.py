"""Where forward is about to use parameters: modules tell, each before it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

from torch import nn
from torch.utils.hooks import RemovableHandle

from ddpexec.ddp.gradient_hooks import remove
from ddpexec.ddp.parameters import ModelParameters

Announce = Callable[[Sequence[int]], bool]
"""Called with registration indices before forward uses those parameters; says whether forward was held up."""


@runtime_checkable
class AnnouncesUse(Protocol):
    """A module that tells by itself when its forward is about to use a parameter, as timed layers do."""

    def announce_forward(self, announce: Announce) -> None:
        """Call `announce` before each use from now on."""


class ForwardPoints:
    """Announces parameters before the modules that own them run.

    A parameter whose owner never runs in the first forward is used by another module's code: the next module around
    it that does run announces it from then on, and if there is none, the whole forward. Before that first forward no
    update can be pending.

    Args:
        module: in whose forward the parameters are used.
        model: its parameters.
        announce: what is called.

    Attributes:
        at_start: registration indices that are announced as forward begins.
        handles: of its hooks, the same list from beginning to end.
    """

    def __init__(self, module: nn.Module, model: ModelParameters, announce: Announce) -> None:
        self.announce = announce
        self.at_start: tuple[int, ...] = ()
        self.handles: list[RemovableHandle] = []
        self._ran: set[nn.Module] | None = None
        self._indices: dict[nn.Module, list[int]] = {}
        if isinstance(module, AnnouncesUse):
            module.announce_forward(announce)
            return
        numbers = {tensor: index for index, tensor in enumerate(model.tensors)}
        self._around: dict[nn.Module, nn.Module] = {
            child: parent for parent in module.modules() for child in parent.children()
        }
        for owner in module.modules():
            own = [numbers[p] for p in owner.parameters(recurse=False) if p in numbers]
            if own:
                self._indices[owner] = own
        self._ran = set()
        self.handles += [each.register_forward_pre_hook(self._note) for each in module.modules()]

    def learn(self) -> None:
        """Know, from the forward that has just ended, which modules announce which parameters."""
        if self._ran is None:
            return
        ran, self._ran = self._ran, None
        self.remove()
        announced: dict[nn.Module, list[int]] = {}
        start: list[int] = []
        for owner, indices in self._indices.items():
            teller: nn.Module | None = owner
            while teller is not None and teller not in ran:
                teller = self._around.get(teller)
            if teller is None:
                start += indices
            else:
                announced.setdefault(teller, []).extend(indices)
        self.at_start = tuple(sorted(set(start)))
        self.handles += [self._hook(module, tuple(indices)) for module, indices in announced.items()]

    def remove(self) -> None:
        """Announce nothing any more."""
        remove(self.handles)
        self.handles.clear()

    def _note(self, module: nn.Module, inputs: Any) -> None:
        if self._ran is not None:
            self._ran.add(module)
            if module in self._indices:
                self.announce(self._indices[module])

    def _hook(self, module: nn.Module, indices: tuple[int, ...]) -> RemovableHandle:
        def announce(*_: Any) -> None:
            self.announce(indices)

        return module.register_forward_pre_hook(announce)
