"""Values of options as people type them: numbers, lists, pairs. `name` is the option's, for errors."""

from __future__ import annotations

from ddpsim.common.errors import InputError

_CAPS_UNIT = "MiB"
"""What a bucket cap is a number of, as torch counts `bucket_cap_mb`."""


def numbers(text: str, name: str, example: str = "1,5,25", unit: str = "") -> list[float]:
    """Return the numbers of a comma-separated list.

    Args:
        text: the list.
        name: of the option.
        example: of a list, for errors.
        unit: in which the option counts; a number may say it.

    Raises:
        InputError: where one is not a finite number; the option, the value and an example are named.
    """
    values = []
    for item in text.split(","):
        try:
            value = float(item.strip().removesuffix(unit))
        except ValueError:
            value = float("nan")
        if not abs(value) < float("inf"):
            what = f"{item!r} is not a number{unit and f' of {unit}'}"
            raise InputError(what, place=name, remedy=f"write e.g. `{name}={example}`")
        values.append(value)
    return values


def parse_one_number(text: str, name: str, example: str, unit: str = "") -> float:
    """Return one number, as `numbers` does.

    Raises:
        InputError: where `text` is no number, or several.
    """
    values = numbers(text, name, example, unit)
    if len(values) != 1:
        raise InputError(f"{text!r} is not one number", place=name, remedy=f"write e.g. `{name}={example}`")
    return values[0]


def counts(text: str, name: str, example: str = "1,2,4") -> list[int]:
    """Return the counts, each at least 1, of a comma-separated list.

    Raises:
        InputError: where one is no whole number of at least 1.
    """
    values = numbers(text, name, example)
    for value in values:
        if value < 1 or value != int(value):
            raise InputError(f"{value:g} is not a count", place=name, remedy=f"write e.g. `{name}={example}`")
    return [int(value) for value in values]


def indices(text: str, name: str, example: str) -> list[int]:
    """Return the whole numbers of at least 0 of a comma-separated list.

    Raises:
        InputError: where one is no such number.
    """
    values = numbers(text, name, example)
    for value in values:
        if value < 0 or value != int(value):
            raise InputError(f"{value:g} is not a number of a GPU", place=name, remedy=f"write e.g. `{name}={example}`")
    return [int(value) for value in values]


def cap(text: str, name: str) -> float:
    """Return the one bucket cap in `text`, as `parse_one_number` does."""
    return parse_one_number(text, name, {"bucket_cap_mb": "25"}.get(name, "1"), _CAPS_UNIT)


def caps(text: str, name: str, example: str = "1,25") -> tuple[float, ...]:
    """Return the bucket caps in `text`, as `numbers` does."""
    return tuple(numbers(text, name, example, _CAPS_UNIT))


def factors(items: list[str], name: str) -> dict[int, float]:
    """Return rank to factor of `RANK:F` items.

    Raises:
        InputError: where an item is not `RANK:F` with a rank of at least 0, or a rank is given twice.
    """
    by_rank: dict[int, float] = {}
    for item in items:
        rank, colon, factor = item.partition(":")
        if not colon or not (rank.isascii() and rank.isdecimal()):
            remedy = f"write RANK:F, e.g. `{name}=3:1.5`"
            raise InputError(f"{item!r} names no rank and factor", place=name, remedy=remedy)
        _refuse_again(int(rank) in by_rank, f"{name}[{rank}]")
        by_rank[int(rank)] = parse_one_number(factor, name, "3:1.5")
    return by_rank


def layers_by_rank(items: list[str], name: str) -> dict[int, tuple[str, ...]]:
    """Return rank to layers of `RANK:LAYER[,LAYER]` items; `FIRST-LAST` stands for the ranks from one to the other.

    Raises:
        InputError: where an item names no ranks and layers, or a rank is given twice.
    """
    by_rank: dict[int, tuple[str, ...]] = {}
    for item in items:
        ranks, colon, layers = item.partition(":")
        first, _, last = ranks.partition("-")
        ends = [int(end) for end in (first, last or first) if end.isascii() and end.isdecimal()]
        if not colon or len(ends) < 2 or ends[0] > ends[1] or not all(layers.split(",")):
            remedy = f"write RANK:LAYER, e.g. `{name}=3:encoder.layer.3` or `{name}=4-7:encoder.layer.3`"
            raise InputError(f"{item!r} names no rank and layer", place=name, remedy=remedy)
        for rank in range(ends[0], ends[1] + 1):
            _refuse_again(rank in by_rank, f"{name}[{rank}]")
            by_rank[rank] = tuple(layers.split(","))
    return by_rank


def percentage(text: str, name: str) -> float:
    """Return the share that `5%` says.

    Raises:
        InputError: no number in front of a percent sign.
    """
    if not text.endswith("%"):
        raise InputError(f"{text!r} is no percentage", place=name, remedy="write e.g. 3%")
    return parse_one_number(text[:-1], name, "3") / 100


def phase_factors(items: list[str], name: str) -> dict[str, float]:
    """Return phase to factor of `PHASE=F` items, or `PHASE:F`; which phases there are is not looked at.

    Raises:
        InputError: where an item is not `PHASE=F`, or a phase is given twice.
    """
    by_phase: dict[str, float] = {}
    for item in items:
        phase, sign, factor = item.replace(":", "=", 1).partition("=")
        if not phase or not sign:
            remedy = f"write PHASE=F, e.g. `{name}=forward=1.1`"
            raise InputError(f"{item!r} names no phase and factor", place=name, remedy=remedy)
        _refuse_again(phase in by_phase, f"{name}[{phase}]")
        by_phase[phase] = parse_one_number(factor, name, "forward=1.1")
    return by_phase


def probabilities(items: list[str], name: str) -> dict[str, float]:
    """Return layer to probability of `LAYER:P` items.

    Raises:
        InputError: where an item is not `LAYER:P`, or a layer is given twice.
    """
    by_layer: dict[str, float] = {}
    for item in items:
        layer, _, probability = item.rpartition(":")
        if not layer:
            remedy = f"write LAYER:P, e.g. `{name}=encoder.layer.3:0.2`"
            raise InputError(f"{item!r} names no layer and probability", place=name, remedy=remedy)
        _refuse_again(layer in by_layer, f"{name}[{layer}]")
        by_layer[layer] = parse_one_number(probability, name, "encoder.layer.3:0.2")
    return by_layer


def _refuse_again(known: bool, place: str) -> None:
    if known:
        raise InputError("is given twice and takes one value", place=place, remedy="keep one")
