"""A module that no wrapper reduces: its phases and gradients alone are stamped."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from ddpexec.ddp.fully_sharded import make_stamp_hook
from ddpexec.ddp.parameters import collect
from ddpexec.timing.observe import Observer
from ddpexec.tracing.traced import TracedModule


class GradientStamps:
    """Hooks on gradients that stamp when each is there."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._handles: list[Callable[[], None]] = []

    def attach(self, parameters: Sequence[tuple[int, Tensor]]) -> None:
        """Put a hook on each of the numbered parameters, where none is."""
        if not self._handles:
            for index, parameter in parameters:
                hook = make_stamp_hook(self._observer, index)
                handle = parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
                self._handles.append(handle.remove)

    def detach(self) -> None:
        """Take the hooks away."""
        while self._handles:
            self._handles.pop()()


class AloneSubject(TracedModule):
    """A module that is trained without a wrapper that this package knows."""

    def __init__(self, module: nn.Module, observer: Observer) -> None:
        super().__init__(module, collect(module), observer)
        self._stamps = GradientStamps(observer)

    def attach(self) -> None:
        """Put a hook on every gradient."""
        self._stamps.attach(list(enumerate(self.model.tensors)))

    def detach(self) -> None:
        """Take the hooks away."""
        self._stamps.detach()

    def is_synced(self) -> bool:
        """Return that nothing is reduced."""
        return False

    def options(self) -> dict[str, object]:
        """Return nothing."""
        return {}
