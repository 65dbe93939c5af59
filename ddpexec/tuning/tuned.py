"""`ddpexec.tuned`: the buckets of a training loop tuned while it runs.

::

    import ddpexec

    model = DistributedDataParallel(model)
    with ddpexec.tuned(model, optimizer, out="tuning") as model:
        for batch in loader:
            optimizer.zero_grad()
            loss_of(model(batch)).backward()
            optimizer.step()
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from ddpexec.ddp.compiling import disable_compile
from ddpexec.errors import OptionError
from ddpexec.tuning.tuner import STEPS, Tuner

Model = TypeVar("Model", bound=nn.Module)


@contextlib.contextmanager
def tuned(model: Model, optimizer: Any, *, out: str | Path | None = None, steps: int = STEPS) -> Iterator[Model]:
    """Tune the buckets of `model` inside the `with`; yields `model`, the same object.

    Args:
        model: torch's DDP or ours, or what holds one; under a scheme its `optimizer` is the one to give.
        optimizer: torch's, or what wraps one as its `optimizer`; a step of the innermost ends a step of the training.
        out: folder for what was decided, which `ddpsim explain` reads; None writes none.
        steps: within which a round of tuning is over.

    Raises:
        OptionError: no optimizer of torch's, or a number of steps that leaves no room.
        InputError: a folder that cannot be written.
    """
    # Inward first: Accelerate's derives from torch's class without its hooks, and steps the one that it wraps.
    stepping = optimizer
    while hasattr(stepping, "optimizer"):
        stepping = stepping.optimizer
    if not hasattr(stepping, "register_step_post_hook"):
        remedy = "give the torch.optim optimizer, or call step() of a ddpexec.Tuner after each step"
        raise OptionError(f"{type(optimizer).__name__} is no optimizer", place="ddpexec.tuned", remedy=remedy)
    tuner = Tuner(model, out=out, steps=steps)

    @disable_compile
    def stepped(*_: Any) -> None:
        tuner.step()

    handle = stepping.register_step_post_hook(stepped)
    try:
        yield model
    except BaseException:
        tuner.abandon()
        raise
    else:
        tuner.close()
    finally:
        handle.remove()
