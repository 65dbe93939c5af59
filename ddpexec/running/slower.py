"""A rank made slower on purpose: it computes for longer, in proportion, where it really computes."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from ddpexec.timing.observe import Observer


class SlowedModule:
    """Stretches forward, each gradient's part of backward, and the optimizer by `factor`, by busy waiting.

    Construct it before the module is wrapped, so that its hook on a gradient comes before the reducer's.
    """

    def __init__(
        self, module: nn.Module, parameters: Sequence[nn.Parameter], observer: Observer, factor: float
    ) -> None:
        self._observer, self._extra = observer, factor - 1
        self._last: int | None = None
        self._mark = 0.0
        module.register_forward_pre_hook(self._begin_forward)
        module.register_forward_hook(self._end_forward)
        for index, parameter in enumerate(parameters):
            hook = functools.partial(self._gradient, index)
            parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]

    def begin(self) -> None:
        """Mark the start of backward, or of the optimizer."""
        self._mark, self._last = time.perf_counter(), None

    def end(self) -> None:
        """Wait for as long as the time since `begin` was too short."""
        self._wait_since(self._mark)

    def _begin_forward(self, *_: Any) -> None:
        self._mark = time.perf_counter()

    def _end_forward(self, *_: Any) -> None:
        self._wait_since(self._mark)

    def _gradient(self, index: int, _: Tensor) -> None:
        # The reducer's own time, from the last gradient's hook, is not the computation's.
        hooks = self._observer.hooks
        since = hooks[self._last][1] if self._last in hooks else self._mark
        self._wait_since(since)
        self._last = index

    def _wait_since(self, begin: float) -> None:
        now = time.perf_counter()
        until = now + self._extra * (now - begin)
        while time.perf_counter() < until:
            pass
