"""When to rebuild buckets for the order in which gradients arrive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ddpsim.common.errors import InputError, UnknownNameError


class Rebuild(Protocol):
    """Decides when to rebuild. Both answers must come out the same on every rank, so they see nothing local."""

    def due(self, backwards: int, rebuilds: int) -> bool:
        """Return whether ranks should confer now, after so many synced backwards and rebuilds."""

    def wanted(self, tau: float, rebuilds: int) -> bool:
        """Return whether to rebuild, given Kendall's tau of the plan in force and the agreed order."""

    def finished(self, rebuilds: int) -> bool:
        """Return whether no further rebuild will be due, so that arrivals need not be watched."""


@dataclass(frozen=True, slots=True)
class Never:
    """Keep the initial buckets."""

    def due(self, backwards: int, rebuilds: int) -> bool:
        """Return False."""
        return False

    def wanted(self, tau: float, rebuilds: int) -> bool:
        """Return False."""
        return False

    def finished(self, rebuilds: int) -> bool:
        """Return True."""
        return True


@dataclass(frozen=True, slots=True)
class Once:
    """Rebuild once, after so many synced backwards: 1 as torch does, 2 as it does under static_graph."""

    after: int = 1

    def __post_init__(self) -> None:
        _check_at_least_one("after", self.after)

    def due(self, backwards: int, rebuilds: int) -> bool:
        """Return whether the time has come."""
        return rebuilds == 0 and backwards >= self.after

    def wanted(self, tau: float, rebuilds: int) -> bool:
        """Return True."""
        return True

    def finished(self, rebuilds: int) -> bool:
        """Return whether that rebuild has been."""
        return rebuilds > 0


@dataclass(frozen=True, slots=True)
class OnDrift:
    """Rebuild after the first backward, and again when the plan's order and the arrivals have drifted apart.

    Attributes:
        tau: rebuild where Kendall's tau over pairs in different buckets is below this.
        every: synced backwards between two conferences of the ranks.
        at_most: rebuilds in all; None is no limit.
    """

    tau: float = 0.95
    every: int = 50
    at_most: int | None = None

    def __post_init__(self) -> None:
        _check_at_least_one("every", self.every)
        if not -1 <= self.tau <= 1:
            raise InputError(f"tau {self.tau!r} is out of range", remedy="give a number from -1 to 1, e.g. 0.95")

    def due(self, backwards: int, rebuilds: int) -> bool:
        """Return whether this backward is the first or one of every so many."""
        if self.finished(rebuilds):
            return False
        return backwards >= 1 if rebuilds == 0 else backwards % self.every == 0

    def wanted(self, tau: float, rebuilds: int) -> bool:
        """Return whether the order has drifted."""
        return rebuilds == 0 or tau < self.tau

    def finished(self, rebuilds: int) -> bool:
        """Return whether all rebuilds have been."""
        return self.at_most is not None and rebuilds >= self.at_most


def rebuild(text: str) -> Rebuild:
    """Return the rebuild policy that `text` names: `never`, `once`, `drift`, `drift:TAU` or `drift:TAU:EVERY`.

    Raises:
        UnknownNameError: no such policy.
        InputError: a parameter that is no number, or out of range.
    """
    name, *values = text.split(":")
    if name not in ("never", "once", "drift"):
        raise UnknownNameError.among("rebuild policy", name, ("never", "once", "drift"))
    if name != "drift":
        if values:
            raise InputError(f"rebuild policy {name!r} takes no parameter, got {text!r}", remedy=f"write {name}")
        return Never() if name == "never" else Once()
    default = OnDrift()
    try:
        tau = float(values[0]) if values else default.tau
        [every] = [int(value) for value in values[1:]] or [default.every]
    except ValueError:
        what = f"{text!r} names no Kendall's tau and number of backwards"
        raise InputError(what, remedy="write e.g. drift:0.95:50") from None
    return OnDrift(tau, every)


def _check_at_least_one(name: str, value: int) -> None:
    if value < 1:
        raise InputError(f"{name} {value!r} is out of range", remedy="give a whole number of at least 1")
