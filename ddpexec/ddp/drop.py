"""Layer dropping: all ranks leave the same layers out of an iteration, and their buckets off the wire."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from torch import nn

from ddpexec.ddp.parameters import collect
from ddpsim.bucketing.drop import DropPlan, layers_named
from ddpsim.common.errors import PlanError


class LayerDrop:
    """Leaves out layers of a module while it trains; give it to `DistributedDataParallel(drop=...)` too.

    A layer that is left out returns its first argument as it came, so its output must have that argument's shape, as
    in a residual stack. Nothing is left out in evaluation mode.

    Args:
        module: the module that will be wrapped; `forward` of the named layers is replaced.
        probabilities: dotted name of a layer to the probability of leaving it out.
        seed: the same on every rank.
        given: iteration, from 1, to the layers left out, for those that one rank decided; the others are drawn.

    Raises:
        PlanError: a layer without trainable parameters, layers inside each other, a probability out of range.
    """

    def __init__(
        self,
        module: nn.Module,
        probabilities: Mapping[str, float],
        seed: int = 0,
        given: Mapping[int, Collection[int]] | None = None,
    ) -> None:
        model = collect(module, getattr(module, "_ddp_params_and_buffers_to_ignore", ()))
        self.names = model.names
        self.plan = DropPlan(layers_named(model.policy, probabilities), seed, given or {})
        self.module = module
        self.layers: frozenset[int] = frozenset()
        for number, layer in enumerate(self.plan.layers):
            self._wrap(module.get_submodule(layer.name), number)

    def start(self, iteration: int) -> frozenset[int]:
        """Choose the layers that `iteration` leaves out and return the parameters that will get no gradient.

        Raises:
            PlanError: nothing is left to train; it is raised on every rank alike.
        """
        self.layers = frozenset(self.plan.layers_dropped(iteration) if self.module.training else ())
        dropped = frozenset(index for number in self.layers for index in self.plan.layers[number].parameters)
        if len(dropped) == len(self.names):
            what = f"iteration {iteration} leaves out all {len(dropped)} parameters: nothing is left to train"
            raise PlanError(what, place="drop", remedy="keep a layer that is never left out")
        return dropped

    def _wrap(self, layer: nn.Module, number: int) -> None:
        inner = layer.forward

        def forward(value: Any, *arguments: Any, **options: Any) -> Any:
            return value if number in self.layers and self.module.training else inner(value, *arguments, **options)

        layer.forward = forward
