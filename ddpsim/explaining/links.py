"""A slow link: collectives that take longer on the wire than the machine allows, though every rank was there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddpsim.explaining.machine import Machine
from ddpsim.explaining.splits import Split

FACTOR = 1.25
SHARE = 0.01


@dataclass(frozen=True, slots=True)
class SlowLink:
    """A link that carries less than the machine's.

    Attributes:
        factor: traced over expected time on the wire.
        seconds: beyond the expected, of all collectives of a step.
        into: rank at its receiving end, where the stamps tell.
        source: what was expected rests on.
    """

    factor: float
    seconds: float
    into: int | None
    source: str

    def text(self) -> str:
        """Return it in words."""
        where = "" if self.into is None else f" into rank {self.into}"
        return f"collectives take {self.factor:.2g} times what {self.source} says{where}"

    def document(self) -> dict[str, object]:
        """Return it as JSON values."""
        return {"factor": self.factor, "seconds": self.seconds, "into_rank": self.into, "source": self.source}


def slow_link(splits: Sequence[Split], machine: Machine | None, step_s: float) -> SlowLink | None:
    """Return the slow link that the wires of a step show."""
    return None
