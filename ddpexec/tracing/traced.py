"""What a traced module offers, whatever reduces its gradients."""

from __future__ import annotations

from typing import Any

from ddpexec.ddp.parameters import ModelParameters
from ddpexec.timing.observe import Note, Observer
from ddpsim.bucketing import BucketPlan


class TracedModule:
    """A module whose steps are traced; what is not told otherwise is that of a wrapper with hooks of its own.

    Args:
        module: whose forward begins an iteration.
        model: its parameters, in registration order.
        observer: takes the moments.

    Attributes:
        implementation: as `run.json` tells it: `torch`, `ddpexec`, `fsdp2` or `none`.
        scheme: what carries gradients, by the name of a schedule.
    """

    implementation, scheme = "none", "ddp"

    def __init__(self, module: Any, model: ModelParameters, observer: Observer) -> None:
        self.module, self.model, self._observer = module, model, observer

    def attach(self) -> None:
        """Put the stamps in place, where they are not."""
        raise NotImplementedError

    def detach(self) -> None:
        """Take the stamps away; the module is as it was."""
        raise NotImplementedError

    def begin(self) -> None:
        """A forward of a stamped iteration begins, which the observer has opened."""

    def is_synced(self) -> bool:
        """Return whether the forward that begins will have its gradients reduced."""
        return bool(self.module.require_backward_grad_sync)

    def name_buckets(self, note: Note) -> None:
        """Write down which parameters the buckets of a closed iteration hold, where that is not known yet."""

    def plan(self) -> BucketPlan | None:
        """Return the buckets in force; None where there are none."""
        return None

    def options(self) -> dict[str, object]:
        """Return what is known of how the job was asked for, by the names of a job's options."""
        names = ("find_unused_parameters", "gradient_as_bucket_view", "static_graph", "broadcast_buffers")
        return {name: bool(getattr(self.module, name)) for name in names if hasattr(self.module, name)}
