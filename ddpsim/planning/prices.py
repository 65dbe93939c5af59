"""What an hour of a machine costs: said by the user, with its currency and the day it was true; none is shipped."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, ClassVar

from ddpsim.common import shipped
from ddpsim.common.documents.fields import Bounds, Parsed
from ddpsim.common.documents.records import read_as
from ddpsim.common.documents.yaml_reading import read_mapping
from ddpsim.common.errors import InputError, UnknownNameError
from ddpsim.common.files import display_name, read_text

_PRICE = re.compile(r"(?P<amount>[-+]?[0-9.]+)\s*(?P<currency>[A-Z]{3})?\s*(?P<hour>/h)?(?:@(?P<date>\S+))?", re.ASCII)
_EXAMPLE = "write e.g. `price=dgx-a100=32.77USD/h`, or 32.77USD/h@2026-11-22 with its day"
_FILE = "write `currency: USD`, `date: 2026-11-22` and `per_hour: {dgx-a100: 32.77}`, an hour of one node each"
_MOST = 1e9
"""No node costs as much an hour."""


@dataclass(frozen=True, slots=True)
class Price:
    """What one node of a machine costs for an hour.

    Attributes:
        per_hour: of one node, from 0 on.
        currency: three capital letters, as ISO 4217 has them.
        date: the day it was true, `2026-11-22`; None where it was not said.
    """

    per_hour: float
    currency: str
    date: str | None = None

    def document(self) -> dict[str, object]:
        """Return the price as JSON values."""
        return {"per_node_hour": self.per_hour, "currency": self.currency, "date": self.date}


NO_PRICES: Mapping[str, Price] = MappingProxyType({})


def parse_price(text: str, place: str = "price") -> tuple[str, Price]:
    """Return machine and price of `dgx-a100=32.77USD/h`, or of `dgx-a100=32.77USD/h@2026-11-22`.

    Raises:
        InputError: no machine, no currency, not an hour's, negative, or a day that does not exist.
    """
    machine, equals, value = text.rpartition("=")
    match = _PRICE.fullmatch(value)
    if not equals or not machine or match is None:
        raise InputError(f"{text!r} is no machine with its price", place=place, remedy=_EXAMPLE)
    if match["currency"] is None:
        raise InputError(f"{text!r} names no currency", place=place, remedy=_EXAMPLE)
    if match["hour"] is None:
        raise InputError(f"{text!r} does not say what it is the price of", place=place, remedy=_EXAMPLE)
    day = match["date"]
    if day is not None and not _is_day(day):
        raise InputError(f"{day!r} is no day", place=place, remedy="write e.g. 2026-11-22")
    return machine, Price(_amount(match["amount"], text, place), match["currency"], day)


def price_machine(machine: str, text: str) -> Price:
    """Return the price of `machine` that is typed as `32.77USD/h`, as `parse_price` takes it."""
    return parse_price(f"{machine}={text}")[1]


def read_prices(path: str | Path) -> dict[str, Price]:
    """Return the prices of a YAML file by machine.

    Raises:
        InputError: a file that cannot be read, lacks its currency or its day, or has a price below 0.
    """
    place, text = display_name(path), read_text(path, InputError, _FILE)
    document = read_mapping(text, place, InputError, _FILE, wanted="a list of prices")
    read = read_as(_PricesFile, document, place, InputError, _FILE, text)
    return {machine: Price(amount, read.currency, read.date) for machine, amount in read.per_hour.items()}


def prices_of(
    items: Sequence[str],
    listed: Mapping[str, Price] | str | Path | None,
    machines: Sequence[str] | Mapping[str, Sequence[str]],
) -> dict[str, Price]:
    """Return the prices of `--price` and of `--prices` together by machine; the former take the place of the latter.

    Args:
        items: `T=32.77USD/h` each.
        listed: of a YAML file, its path or what `read_prices` returned; machines that are not compared may be in it.
        machines: that are compared, or of each name the machines that it stands for, as `machine_names` returns.

    Raises:
        InputError: as `parse_price`, `read_prices` and `by_machine`; a machine twice; two currencies.
    """
    names = machines if isinstance(machines, Mapping) else {machine: (machine,) for machine in machines}
    typed: dict[str, Price] = {}
    for item in items:
        machine, price = parse_price(item)
        if machine not in names:
            raise UnknownNameError.among("machine", machine, names, place="price")
        if any(name in typed for name in names[machine]):
            raise InputError("is given twice and takes one value", place=f"price={machine}", remedy="keep one")
        typed |= dict.fromkeys(names[machine], price)
    from_file = {}
    if listed is not None:
        read, place = (listed, "prices") if isinstance(listed, Mapping) else (read_prices(listed), display_name(listed))
        from_file = index_by_machine({name: price for name, price in read.items() if name in names}, names, place)
    prices = {**from_file, **typed}
    check_currencies(prices)
    return prices


def machine_names(machines: Iterable[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    """Return what each name of a machine stands for: as it was asked for, by its `name:`, and by its file's name.

    Args:
        machines: as each was asked for, with its own name.
    """
    by_name: dict[str, tuple[str, ...]] = {}
    for asked, own in machines:
        file = Path(asked).name
        stem = next((file.removesuffix(end) for end in (".yaml", ".yml") if file.endswith(end)), file)
        for name in dict.fromkeys((asked, own, file, stem)):
            by_name[name] = tuple(dict.fromkeys((*by_name.get(name, ()), asked)))
    return by_name


def index_by_machine(
    prices: Mapping[str, Price], names: Mapping[str, Sequence[str]], place: str = "prices"
) -> dict[str, Price]:
    """Return prices by machine as it was asked for.

    Args:
        prices: by any name of a machine.
        names: of each, the machines that it stands for.
        place: of the prices, for errors.

    Raises:
        UnknownNameError: a name of no machine that is compared or shipped: its price would be lost unseen.
        InputError: a machine with two prices.
    """
    by_machine: dict[str, Price] = {}
    for name, price in prices.items():
        if name not in names and name not in shipped.names("topology"):
            raise UnknownNameError.among("machine", name, names, place=place)
        for machine in names.get(name, ()):
            if by_machine.get(machine, price) != price:
                raise InputError(f"{machine} has two prices", place=place, remedy="keep one of its names")
            by_machine[machine] = price
    return by_machine


def check_currencies(prices: Mapping[str, Price]) -> None:
    """Refuse prices of several currencies.

    Raises:
        InputError: two currencies; each is named with a machine.
    """
    by_currency = {price.currency: machine for machine, price in prices.items()}
    if len(by_currency) > 1:
        named_ = " and ".join(f"{machine} in {currency}" for currency, machine in sorted(by_currency.items()))
        remedy = "convert them to one currency; no rate of exchange is known here"
        raise InputError(f"prices of {named_} do not compare", place="price", remedy=remedy)


def _amount(text: str, whole: str, place: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise InputError(f"{whole!r} has no number", place=place, remedy=_EXAMPLE) from None
    if not 0 <= value <= _MOST:
        raise InputError(f"{whole!r} is out of range", place=place, remedy=f"give a price from 0 to {_MOST:g}")
    return value


def _is_day(text: str) -> bool:
    try:
        return datetime.date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def _day(value: object) -> str:
    text = value.isoformat() if isinstance(value, datetime.date) else value
    if not isinstance(text, str) or not _is_day(text):
        raise InputError(f"{str(value)[:60]!r} is no day; write e.g. 2026-11-22")
    return text


def _number(value: object) -> float:
    if type(value) not in (int, float) or not 0 <= float(value) <= _MOST:  # type: ignore[arg-type]
        raise InputError(f"{str(value)[:60]!r} is no price from 0 to {_MOST:g}, in the file's currency")
    return float(value)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, kw_only=True)
class _PricesFile:
    """A whole file: an hour of one node of each machine, all in one currency, as of one day."""

    EXTRA: ClassVar = "forbid"

    currency: Annotated[str, Bounds(pattern=r"^[A-Z]{3}$")]
    date: Annotated[str, Parsed(_day, str)]
    source: str | None = None
    per_hour: Annotated[Mapping[str, Annotated[float, Parsed(_number, float)]], Bounds(min_length=1)]
