"""How a table writes a time, a share and a size; None where there is none, which each writer marks in its own way."""

from __future__ import annotations

from ddpsim.common.units import MIB

GBPS = 8e-9
"""Gigabits a second in a byte a second: links are sold by these."""


def ms(seconds: float | None) -> str | None:
    """Return milliseconds: `178.53`."""
    return None if seconds is None else f"{seconds * 1e3:.2f}"


def ms_more(seconds: float) -> str:
    """Return milliseconds with their sign: `+1.25`."""
    return f"{seconds * 1e3:+z.2f}"


def percent(ratio: float | None, signed: bool = False, digits: int = 1) -> str | None:
    """Return a ratio in percent: `7.5 %`, `+7.5 %`."""
    return None if ratio is None else f"{ratio * 100:{'+' if signed else ''}z.{digits}f} %"


def mib(size_bytes: int) -> str:
    """Return MiB to hundredths, of a small size to two digits: `25.00`, `0.0039`."""
    size = size_bytes / MIB
    return f"{size:.2f}" if size >= 0.1 else f"{size:.2g}"


def format_rate(bytes_per_s: float) -> str:
    """Return the rate of a link as it is sold: `100 Gb/s`."""
    return f"{bytes_per_s * GBPS:.3g} Gb/s" if bytes_per_s < 125e9 else f"{bytes_per_s * 1e-3 * GBPS:.3g} Tb/s"


def format_short(value: float) -> str:
    """Return a number to three digits, without an exponent: `1.24`, `18.0`, `162`, `12345`."""
    # Of three digits 99.95 is the first number that would be written `100.`, with a point.
    return f"{value:.0f}" if value >= 99.95 else f"{value:#.3g}" if value >= 0.1 else f"{value:.2g}"


def format_band(band: tuple[float, float, float], factor: float = 1.0) -> str:
    """Return a number with its band, to three digits: `162 (121-218)`."""
    return "{} ({}-{})".format(*(format_short(value * factor) for value in band))
