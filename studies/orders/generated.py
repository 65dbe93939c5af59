"""Order traces that are drawn, larger than anybody recorded: `python -m studies.orders.generated ranks=64 --out FILE`.

`ddpsim order-bench --traces FILE` takes what it writes.

A model is a stack of blocks of equal parameters, computed in turn from the top in backward. In each step a rank leaves
some out and turns some neighbours round; what it left out it leaves out again with some persistence.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddpsim.bucketing import Parameter
from ddpsim.common.errors import InputError
from ddpsim.workload.order_trace import Context, OrderTrace, save_order_trace
from ddpsim.workload.profile import Phase, Workload
from studies.command import parser

PER_BLOCK = 2
"""Parameters of a block, a weight and another as large."""
FORWARD, OPTIMIZER = 0.5, 0.1
"""Of backward, what forward and the optimizer take: one matrix product for two, and an update's few passes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Statistics say what a trace is drawn with; shares and chances are from 0 to 1.

    Attributes:
        ranks, steps: how many.
        blocks: of the model.
        block_bytes: gradients of a block.
        backward_s: of a step that leaves nothing out.
        unused: chance that a step of a rank leaves out a block that may be.
        persistence: chance that a rank's step leaves out what its last one did, instead of drawing anew.
        shared: chance that a step's ranks all draw the same, as tasks and curricula make them.
        swapped: chance that two neighbouring blocks come in the other order.
        spread: standard deviation, over ranks and steps, of the logarithm of a step's time.
        contexts: kinds of batches, each with blocks of its own that it leaves out, told before forward; 0 is none told.
        seed: of every draw.

    Raises:
        InputError: a value out of range.
    """

    ranks: int = 64
    steps: int = 100
    blocks: int = 24
    block_bytes: int = 1 << 20
    backward_s: float = 0.1
    unused: float = 0.3
    persistence: float = 0.5
    shared: float = 0.0
    swapped: float = 0.1
    spread: float = 0.02
    contexts: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("ranks", "steps", "blocks", "block_bytes"):
            if getattr(self, name) < 1:
                raise InputError(f"{getattr(self, name)!r} is not a count", place=name, remedy="give 1 or more")
        for name in ("unused", "persistence", "shared", "swapped"):
            if not 0 <= getattr(self, name) <= 1:
                what = f"{getattr(self, name)!r} is out of range"
                raise InputError(what, place=name, remedy="give a number from 0 to 1")
        if self.spread < 0 or self.contexts < 0 or self.seed < 0 or not self.backward_s > 0:
            what = "`spread`, `contexts` or `seed` is below 0, or `backward_s` is not above"
            raise InputError(what, remedy="give what a training could have")


def statistics_of(text: str) -> Statistics:
    """Return the statistics that `ranks=64,unused=0.3` names; those it leaves out keep their defaults.

    Raises:
        InputError: an unknown name, one given twice, or a value that is no number, or out of range.
    """
    kinds: dict[str, Any] = {each.name: type(each.default) for each in fields(Statistics)}
    found: dict[str, Any] = {}
    for item in text.split(",") if text else ():
        name, _, value = item.partition("=")
        if name not in kinds or not value:
            remedy = f"write NAME=VALUE with one of {', '.join(kinds)}"
            raise InputError(f"{item!r} says nothing", place="generated", remedy=remedy)
        if name in found:
            raise InputError(f"{name!r} is given twice", place="generated", remedy="keep one")
        try:
            found[name] = kinds[name](value)
        except ValueError:
            what = f"{value!r} is no {kinds[name].__name__}"
            raise InputError(what, place=f"generated, {name}", remedy="give a number") from None
    return Statistics(**found)


def generate_trace(statistics: Statistics) -> OrderTrace:
    """Return a trace drawn with `statistics`; the same ones give the same trace."""
    rng = np.random.default_rng(statistics.seed)
    kept = [_Rank(statistics, np.random.default_rng([statistics.seed, 1, rank])) for rank in range(statistics.ranks)]
    kinds = [_draw_left_out(statistics, rng) for _ in range(statistics.contexts)]
    for _ in range(statistics.steps):
        common = rng.random() < statistics.shared
        together = _Draw.of(statistics, rng, kinds) if common else None
        for rank in kept:
            rank.step(together, kinds)
    workloads = tuple(rank.workload() for rank in kept)
    contexts = tuple(tuple(rank.contexts) for rank in kept)
    return OrderTrace(workloads, contexts, {"generated": asdict(statistics)})


Blocks = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class _Draw:
    left_out: Blocks
    context: Context

    @classmethod
    def of(cls, statistics: Statistics, rng: np.random.Generator, kinds: list[Blocks]) -> _Draw:
        if kinds:
            number = int(rng.integers(len(kinds)))
            return cls(kinds[number], number)
        return cls(_draw_left_out(statistics, rng), None)


def _draw_left_out(statistics: Statistics, rng: np.random.Generator) -> Blocks:
    drawn = rng.random(statistics.blocks) < statistics.unused
    drawn[0] = False  # the first block is the trunk's: something must be left
    return drawn


class _Rank:
    def __init__(self, statistics: Statistics, rng: np.random.Generator) -> None:
        self._statistics, self._rng = statistics, rng
        self._last: _Draw | None = None
        self._hooks: list[NDArray[np.float64]] = []
        self._ends: list[float] = []
        self.contexts: list[Context] = []

    def step(self, together: _Draw | None, kinds: list[Blocks]) -> None:
        """Draw one step."""
        statistics, rng = self._statistics, self._rng
        again = self._last is not None and rng.random() < statistics.persistence
        draw = together or (self._last if again else None) or _Draw.of(statistics, rng, kinds)
        self._last = draw
        pace = statistics.backward_s / statistics.blocks * float(np.exp(statistics.spread * rng.standard_normal()))
        hooks, clock = np.full(PER_BLOCK * statistics.blocks, np.nan), 0.0
        for block in self._order():
            if not draw.left_out[block]:
                for place in reversed(range(PER_BLOCK)):
                    clock += pace / PER_BLOCK
                    hooks[PER_BLOCK * block + place] = clock
        self._hooks.append(hooks)
        self._ends.append(clock)
        self.contexts.append(draw.context)

    def workload(self) -> Workload:
        """Return what was drawn."""
        statistics, ends = self._statistics, np.array(self._ends)
        shape = (max(1, statistics.block_bytes // PER_BLOCK // 4),)
        hooks = np.array(self._hooks)
        names = [f"block{block}.{place}" for block in range(statistics.blocks) for place in range(PER_BLOCK)]
        return Workload(
            name=f"generated-{statistics.ranks}",
            device="cpu",
            precision="fp32",
            batch_size=1,
            threads=None,
            estimated=True,
            parameters=tuple(Parameter(name, shape) for name in names),
            buffers=(),
            forward=Phase(FORWARD * ends, FORWARD * ends),
            backward=Phase(ends, ends),
            optimizer=Phase(OPTIMIZER * ends, OPTIMIZER * ends),
            gradient_hook_s=hooks,
            gradient_ready_s=hooks.copy(),
            provenance={"generated": asdict(statistics)},
        )

    def _order(self) -> Iterator[int]:
        """Yield blocks from the top, neighbours turned round by chance."""
        order = list(range(self._statistics.blocks))[::-1]
        place = 0
        while place < len(order) - 1:
            if self._rng.random() < self._statistics.swapped:
                order[place], order[place + 1] = order[place + 1], order[place]
                place += 1
            place += 1
        yield from order


def main() -> int:
    """Write the trace of the statistics that are asked for."""
    words = parser(__doc__)
    words.add_argument("statistics", metavar="ranks=64,unused=0.3", help="those left out keep their defaults")
    words.add_argument("--out", required=True, help="order trace to write; .gz is gzipped")
    given = words.parse_args()
    save_order_trace(generate_trace(statistics_of(given.statistics)), given.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
