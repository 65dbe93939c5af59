"""Optimizers by name: what one step of each moves through device memory, and what it launches."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from ddpsim.bucketing import Parameter
from ddpsim.common.errors import UnknownNameError

_TENSORS_A_LAUNCH = 30
"""Parameters that one kernel of a `foreach` or fused step takes: torch's `multi_tensor_apply` has places for 110 small
ones, fewer where they are cut into chunks of 65,536 elements."""


_CLIPPED = " with gradient clipping"


@dataclass(frozen=True, slots=True)
class Optimizer:
    """The kernels that an optimizer's step launches, and the bytes they move.

    Attributes:
        name: as `--optimizer` takes it.
        passes: how often a step reads or writes something of a parameter's size.
        kernels: kernels a step launches: for each parameter in a plain loop, else for each group of them.
        loop: whether it is a plain loop over parameters.
        fixed_s, parameter_s: host time of a step, and for each parameter.
    """

    name: str
    passes: float
    kernels: int
    loop: bool
    fixed_s: float
    parameter_s: float

    def with_clipping(self) -> Optimizer:
        """Return this optimizer after `clip_grad_norm_`: gradients are read for their norm, then scaled in place.

        One that clips already stays as it is.
        """
        if self.clips:
            return self
        return replace(
            self,
            name=f"{self.name}{_CLIPPED}",
            passes=self.passes + 3,
            kernels=self.kernels if self.loop else self.kernels + 2,
            fixed_s=self.fixed_s + 150e-6,
            parameter_s=self.parameter_s + 3e-6,
        )

    @property
    def clips(self) -> bool:
        """Whether gradients are clipped before the step."""
        return self.name.endswith(_CLIPPED)

    @property
    def kind(self) -> str:
        """The optimizer as `ModelShape.optimizer_kind` names it: `adamw-fused+clip`."""
        return self.name.removesuffix(_CLIPPED) + ("+clip" if self.clips else "")

    def host_s(self, parameters: int) -> float:
        """Return the host's time of one step."""
        return self.fixed_s + self.parameter_s * parameters if self.passes else 0.0

    def works_s(self, parameters: Sequence[Parameter], achieved_Bps: float, kernel_s: float) -> list[float]:  # noqa: N803
        """Return the device's time of each launch of one step; a `foreach` step is taken as one.

        Args:
            parameters: of the model.
            achieved_Bps: bytes a second of device memory.
            kernel_s: least time of a kernel.
        """
        if not self.loop:
            launches = self.kernels * math.ceil(len(parameters) / _TENSORS_A_LAUNCH)
            return [max(self.passes * sum(p.size_bytes for p in parameters) / achieved_Bps, launches * kernel_s)]
        share = self.passes / self.kernels / achieved_Bps
        return [self.kernels * max(share * parameter.size_bytes, kernel_s) for parameter in parameters]


OPTIMIZERS: Mapping[str, Optimizer] = MappingProxyType(
    {
        optimizer.name: optimizer
        for optimizer in (
            Optimizer("none", 0, 0, False, 0.0, 0.0),
            Optimizer("sgd", 3, 1, False, 200e-6, 2e-6),
            Optimizer("sgd-fused", 3, 1, False, 150e-6, 2e-6),
            Optimizer("momentum", 5, 1, False, 300e-6, 4e-6),
            Optimizer("momentum-fused", 5, 1, False, 150e-6, 2e-6),
            Optimizer("adam", 18, 11, True, 300e-6, 70e-6),
            Optimizer("adam-foreach", 18, 10, False, 500e-6, 8e-6),
            Optimizer("adam-fused", 7, 1, False, 200e-6, 3e-6),
            Optimizer("adamw", 20, 12, True, 300e-6, 76e-6),
            Optimizer("adamw-foreach", 20, 11, False, 500e-6, 8e-6),
            Optimizer("adamw-fused", 7, 1, False, 200e-6, 3e-6),
        )
    }
)
"""By name. Passes are counted from torch 2.13's `torch/optim`: `sgd` reads parameter and gradient and writes the
parameter; Adam's loop (`adam`, `adamw`) has an operator for each of decay, both moments, root, quotient and update,
`foreach` the same ones for groups of parameters; fused reads four tensors and writes three. `momentum` is counted as if
it were fused. Without a word torch takes `foreach` on a GPU. Host times are priors of eager mode: 6 us an operator, and
what Python adds."""


ADDITION = Optimizer("addition", 3, 1, True, 0.0, 5e-6)
"""What adds a gradient to that of the micro-batches before: autograd's `grad += new`, a kernel a parameter that reads
both and writes one. Its host time is that of a kernel launched from C++, as of a hook of DDP."""


def optimizer_of_kind(kind: str | None) -> Optimizer | None:
    """Return the optimizer that a counted step uses, as `ModelShape.optimizer_kind` names it; None where it is unknown.

    Of several that share the parameters between them the first stands for all.

    >>> optimizer_of_kind("adamw-foreach+clip").name
    'adamw-foreach with gradient clipping'
    """
    name, _, clipped = (kind or "").partition("+")
    optimizer = OPTIMIZERS.get(name.partition(",")[0])
    return optimizer.with_clipping() if optimizer is not None and clipped else optimizer


def optimizer_named(name: str, *, clipping: bool = False) -> Optimizer:
    """Return the optimizer called `name`, after gradient clipping where that is asked for.

    Raises:
        UnknownNameError: no such optimizer.
    """
    if name not in OPTIMIZERS:
        raise UnknownNameError.among("optimizer", name, OPTIMIZERS, place="optimizer")
    optimizer = OPTIMIZERS[name]
    return optimizer.with_clipping() if clipping else optimizer
