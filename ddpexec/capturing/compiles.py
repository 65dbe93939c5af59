"""Whether torch.compile compiles what is captured."""

from __future__ import annotations

import sys
from typing import Any

from torch import nn


class Compiles:
    """Tells whether torch.compile has compiled a module, a part of it, or a step that calls it.

    Args:
        module: that is trained.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module, self._before = module, _graphs()

    @property
    def seen(self) -> bool:
        """Whether it has: the module says so, or graphs were compiled since this was made."""
        return compiled(self._module) or _graphs() > self._before


def compiled(module: nn.Module) -> bool:
    """Return whether torch.compile was called on `module` or on a part of it."""
    return any(
        type(each).__name__ == "OptimizedModule" or getattr(each, "_compiled_call_impl", None) is not None
        for each in module.modules()
    )


def _graphs() -> int:
    """Return how many graphs this process has compiled; the compiler is not loaded for that."""
    loaded: Any = sys.modules.get("torch._dynamo.utils")
    return 0 if loaded is None else int(loaded.counters["stats"]["unique_graphs"])
