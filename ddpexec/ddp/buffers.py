"""Module buffers, made equal to rank 0's before each forward, or reduced by a hook."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

from ddpexec.ddp.parameters import broadcast
from ddpexec.groups.process_groups import Communicator
from ddpexec.timing.observe import Observer

BufferHook = Callable[[Any, dict[str, Tensor]], Any]


class BufferSynchroniser:
    """Broadcast the buffers of `module`, which may be reassigned between calls but not moved to other modules.

    The walk over the modules is made once: it would otherwise cost about a millisecond a step for a ResNet-50.

    Attributes:
        hook: with its state, `hook(state, named buffers)` synchronises instead; it may return futures.
        after_forward: whether it does so after forward.
    """

    def __init__(self, module: nn.Module, communicator: Communicator, ignored: Collection[str]) -> None:
        self._communicator = communicator
        self._ignored = frozenset(ignored)
        self._owners = list(module.named_modules())
        self.hook: tuple[BufferHook, Any] | None = None
        self.after_forward = False

    def list_named(self) -> dict[str, Tensor]:
        """Return the buffers by dotted name, each once, those ignored left out."""
        found: dict[str, Tensor] = {}
        seen: set[int] = set()
        for prefix, owner in self._owners:
            for name, buffer in owner._buffers.items():
                full = f"{prefix}.{name}" if prefix else name
                if buffer is not None and id(buffer) not in seen and full not in self._ignored:
                    seen.add(id(buffer))
                    found[full] = buffer
        return found

    def synchronise(self, source: int = 0, observer: Observer | None = None) -> list[torch.futures.Future[Any]]:
        """Overwrite the buffers with rank `source`'s, or call the hook; return its futures.

        Autograd does not count this as a modification. Where there are buffers, `observer` notes what it took.
        """
        begin = observer.now() if observer is not None else None
        named = self.list_named()
        buffers = tuple(named.values())
        if not buffers or self._communicator.noop:
            return []
        with torch.no_grad(), _unsafe_preserve_version_counter(buffers):
            if self.hook is not None:
                hook, state = self.hook
                futures = list(hook(state, named) or ())
            else:
                futures = []
                broadcast(buffers, self._communicator, source)
        if observer is not None:
            observer.buffers(begin)
        return futures
