"""How a table writes a time, a share and a size; None where there is none, which each writer marks in its own way."""

from __future__ import annotations

from ddpsim.units import MIB


def ms(seconds: float | None) -> str | None:
    """Return milliseconds: `178.53`."""
    return None if seconds is None else f"{seconds * 1e3:.2f}"


def ms_more(seconds: float) -> str:
    """Return milliseconds with their sign: `+1.25`."""
    return f"{seconds * 1e3:+.2f}"


def percent(ratio: float | None, signed: bool = False) -> str | None:
    """Return a ratio in percent: `7.5 %`, `+7.5 %`."""
    return None if ratio is None else f"{ratio * 100:{'+' if signed else ''}.1f} %"


def mib(size_bytes: int | None) -> str | None:
    """Return MiB: `25.00`."""
    return None if size_bytes is None else f"{size_bytes / MIB:.2f}"
