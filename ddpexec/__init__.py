"""Run, measure and trace distributed data parallel training on torch.distributed.

What a training script needs stands here, imported with torch when it is first asked for; `help(ddpexec.tuned)` and its
like say more:

    DistributedDataParallel(module, ...)  torch's class by the same arguments, with plans, policies, schemes and traces
    ScheduledDataParallel(module, scheme, ...)  the same class by the older name of its schemes
    LayerDrop(module, ...)                layers left out while a module trains
    tuned(model, optimizer, ...)          a training loop that tunes its own buckets; Tuner: the same, step by step
    trace(folder, ...)                    a trace of the training loop inside a `with`; Observer: its moments
    Capture(module, ...)                  a workload of a training loop
"""

# Nothing is imported here, `typing` neither: a command could not yet answer an interrupt.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ddpexec.capturing.capture import Capture as Capture
    from ddpexec.ddp.drop import LayerDrop as LayerDrop
    from ddpexec.ddp.scheduled_wrapper import ScheduledDataParallel as ScheduledDataParallel
    from ddpexec.ddp.wrapper import DistributedDataParallel as DistributedDataParallel
    from ddpexec.timing.observe import Observer as Observer
    from ddpexec.tracing.tracer import trace as trace
    from ddpexec.tuning.tuned import tuned as tuned
    from ddpexec.tuning.tuner import Tuner as Tuner

_MODULES = {
    "Capture": "capturing.capture",
    "DistributedDataParallel": "ddp.wrapper",
    "LayerDrop": "ddp.drop",
    "Observer": "timing.observe",
    "ScheduledDataParallel": "ddp.scheduled_wrapper",
    "Tuner": "tuning.tuner",
    "trace": "tracing.tracer",
    "tuned": "tuning.tuned",
}
"""Where each name stands; no `__all__`, see its Note in `ddpsim/__init__.py`."""


def __getattr__(name: str) -> "Any":
    """Import what `name` needs and return it."""
    import importlib

    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    """Return the public names, without the modules that this one needs itself."""
    return sorted({*(name for name in globals() if name.startswith("__")), *_MODULES})
