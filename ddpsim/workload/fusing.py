"""What torch.compile makes of a step's operators: consecutive memory-bound ones become one kernel.

TorchInductor turns pointwise operators and reductions into kernels of its own and leaves convolutions, products and
attention to libraries (Ansel et al., "PyTorch 2", ASPLOS 2024). Here each run of consecutive memory-bound operators is
one launch, and of its bytes those are left out that an operator of the run writes and another reads: `fused_bytes`.
That is the most that fusion can save within runs: what backward needs is taken to be computed again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from ddpsim.workload.operators import NARROW, Operator

INDUCTOR = "inductor"
INDUCTOR_GRAPHS = "inductor with CUDA graphs"
"""Of `mode="reduce-overhead"` and all else that sets `triton.cudagraphs`."""
COMPILERS = (INDUCTOR, INDUCTOR_GRAPHS)
"""What prices a compiled step; other backends are taken to run operators one by one."""

COMPILED_AS = "compiled_as"
"""Key of an estimate's provenance: a document of `CompiledAs`."""

SOURCE = (
    "from eager mode to the most that fusing consecutive memory-bound operators saves: nanoGPT's GPT-2 went from 250 "
    "to 135 ms (its README, a factor of 1.85; 2.06 is priced), but PyTorch's dashboard has single training "
    "steps without CUDA graphs at 0.89 to 2.21 times eager mode's speed (pytorch/pytorch#96191), and its three suites "
    "at 1.38, 1.60 and 1.23 in the mean (pytorch/pytorch#93794)"
)


@dataclass(frozen=True, slots=True)
class CompiledAs:
    """How an estimate of a compiled step differs from the same step in eager mode.

    Attributes:
        compiler: of `COMPILERS`.
        launches, eager_launches: of forward and backward; a phase in a CUDA graph is one.
        device_s, host_s: of a step as it is priced, the optimizer's too.
        eager_device_s, eager_host_s: of the same step operator by operator.
    """

    compiler: str
    launches: int
    eager_launches: int
    device_s: float
    eager_device_s: float
    host_s: float
    eager_host_s: float

    @classmethod
    def of(cls, provenance: Mapping[str, object]) -> CompiledAs | None:
        """Return what an estimate says of itself; None of one that is not priced as compiled."""
        comparison = provenance.get(COMPILED_AS)
        if not isinstance(comparison, Mapping):
            return None
        try:
            return cls(str(comparison["compiler"]), *(type_(comparison[name]) for name, type_ in _NUMBERS.items()))
        except (KeyError, TypeError, ValueError):
            return None

    def document(self) -> dict[str, object]:
        """Return this as a workload's provenance keeps it."""
        numbers = {name: round(getattr(self, name), 9) for name in _NUMBERS}
        return {"compiler": self.compiler, **numbers, "source": SOURCE}

    @property
    def device_factor(self) -> float:
        """Eager mode's time on the device over that of the compiled step."""
        return max(self.eager_device_s / self.device_s, 1.0)

    @property
    def host_factor(self) -> float:
        """Eager mode's time on the host over that of the compiled step."""
        return max(self.eager_host_s / self.host_s, 1.0)

    def text(self) -> str:
        """Return one sentence without a full stop, for people."""
        return (
            f"priced as torch.compile's {self.compiler} would run it: {self.launches} launches rather than "
            f"{self.eager_launches} operators, {self.device_s * 1e3:.4g} ms on the device rather than "
            f"{self.eager_device_s * 1e3:.4g} ms in eager mode ({self.device_s / self.eager_device_s - 1:+.0%}), "
            f"{self.host_s * 1e3:.4g} ms on the host rather than {self.eager_host_s * 1e3:.4g} ms; "
            "doubted up to eager mode"
        )


_NUMBERS = {
    "launches": int, "eager_launches": int, "device_s": float, "eager_device_s": float, "host_s": float,
    "eager_host_s": float,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Fused:
    """Operators of one phase after fusion, and for each counted operator the number of the launch it became part of."""

    operators: tuple[Operator, ...]
    launch_of: tuple[int, ...]


def fuse_operators(operators: Sequence[Operator], precision: str) -> Fused:
    """Return `operators` with each run of consecutive memory-bound ones as one; the rest stay as they are."""
    launches: list[Operator] = []
    launch_of: list[int] = []
    for run in _runs(operators):
        launch_of += [len(launches)] * len(run)
        launches.append(run[0] if len(run) == 1 else _fuse_run(run, precision))
    return Fused(tuple(launches), tuple(launch_of))


def _runs(operators: Sequence[Operator]) -> Iterator[list[Operator]]:
    for memory, group in groupby(operators, lambda operator: operator.kind == "memory"):
        if memory:
            yield list(group)
        else:
            yield from ([operator] for operator in group)


def _fuse_run(run: Sequence[Operator], precision: str) -> Operator:
    """Return a run as one operator, whose bytes are those of `precision` already: it mixes widths."""

    def width(operator: Operator) -> float:
        return 0.5 if precision in NARROW and not operator.fp32 else 1.0

    traffic = sum((operator.traffic_bytes - operator.fused_bytes) * width(operator) for operator in run)
    fixed = sum(operator.fixed_bytes * width(operator) for operator in run)
    gradients = tuple(index for operator in run for index in operator.gradients)
    return replace(
        run[0],
        flops=sum(operator.flops for operator in run),
        traffic_bytes=max(traffic, 0.0),
        fp32=True,
        gradients=gradients,
        fixed_bytes=min(fixed, max(traffic, 0.0)),
        fused_bytes=0.0,
    )
