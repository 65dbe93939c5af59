"""Rates of links and shares as people type them: `25,100,400Gb/s` of the NICs, `nvlink=25,50GB/s`, `80%`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ddpsim.common.errors import InputError
from ddpsim.common.units import parse_bandwidth

NIC = "nic"
"""The links of a list of rates that names none."""

_UNIT = re.compile(r"[A-Za-z].*$")


def link_rates(items: Sequence[str], name: str = "link_rate") -> list[tuple[str, float]]:
    """Return link and rate in bytes per second of each of `items`, in the order typed.

    The unit behind the last rate of a list is that of those without one.

    Raises:
        InputError: an empty list, a link given twice, or a rate without any unit.

    >>> link_rates(["25,100Gb/s"])
    [('nic', 3125000000.0), ('nic', 12500000000.0)]
    """
    found: list[tuple[str, float]] = []
    for item in items:
        link, equals, listed = item.rpartition("=")
        link = link if equals else NIC
        texts = [text.strip() for text in listed.split(",")]
        if not link or not all(texts):
            raise InputError(f"{item!r} is no list of rates", place=name, remedy=f"write e.g. `{name}=25,100,400Gb/s`")
        if any(link == known for known, _ in found):
            raise InputError("is given twice and takes one list", place=f"{name}={link}", remedy="keep one")
        unit = found_unit[0] if (found_unit := _UNIT.search(texts[-1])) else ""
        found += [(link, parse_bandwidth(text if _UNIT.search(text) else text + unit, name)) for text in texts]
    return found


def share(text: str, name: str) -> float:
    """Return the share that `80%` is.

    Raises:
        InputError: no number, or no percent sign.
    """
    number, percent, rest = text.partition("%")
    try:
        value = float(number)
    except ValueError:
        value = float("nan")
    if not percent or rest or not 0 <= value <= 100:
        raise InputError(f"{text!r} is no share in percent", place=name, remedy=f"write e.g. `{name}=80%`")
    return value / 100
