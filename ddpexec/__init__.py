"""Run, measure and trace distributed data parallel training on torch.distributed.

What a training script needs stands here, imported with torch when it is first asked for.
"""

# Nothing is imported here, `typing` neither: a command could not yet answer an interrupt.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ddpexec.capturing.capture import Capture
    from ddpexec.ddp.drop import LayerDrop
    from ddpexec.ddp.wrapper import DistributedDataParallel
    from ddpexec.timing.observe import Observer
    from ddpexec.tracing.tracer import trace
    from ddpexec.tuning.tuned import tuned
    from ddpexec.tuning.tuner import Tuner

__all__ = ["Capture", "DistributedDataParallel", "LayerDrop", "Observer", "Tuner", "trace", "tuned"]

_MODULES = {
    "Capture": "capturing.capture",
    "DistributedDataParallel": "ddp.wrapper",
    "LayerDrop": "ddp.drop",
    "Observer": "timing.observe",
    "Tuner": "tuning.tuner",
    "trace": "tracing.tracer",
    "tuned": "tuning.tuned",
}
"""Where each name of `__all__` stands."""


def __getattr__(name: str) -> "Any":
    """Import what `name` needs and return it."""
    import importlib

    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    """Return the public names, without the modules that this one needs itself."""
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__})
