"""Values of options as people type them: lists, pairs, names of files."""

from __future__ import annotations

from ddpsim.errors import InputError


def numbers(text: str, flag: str, example: str = "1,5,25") -> list[float]:
    """Return the numbers of a comma-separated list.

    Raises:
        InputError: where one is not a finite number; the flag, the value and an example are named.
    """
    found = []
    for item in text.split(","):
        try:
            value = float(item)
        except ValueError:
            value = float("nan")
        if not abs(value) < float("inf"):
            raise InputError(f"{item!r} is not a number", place=flag, remedy=f"write e.g. {flag} {example}")
        found.append(value)
    return found


def one_number(text: str, flag: str, example: str) -> float:
    """Return one number.

    Raises:
        InputError: where `text` is no number, or several.
    """
    found = numbers(text, flag, example)
    if len(found) != 1:
        raise InputError(f"{text!r} is not one number", place=flag, remedy=f"write e.g. {flag} {example}")
    return found[0]


def number(text: str | None, flag: str, example: str) -> float | None:
    """Return one number; None for None.

    Raises:
        InputError: where `text` is no number, or several.
    """
    return None if text is None else one_number(text, flag, example)


def counts(text: str, flag: str, example: str = "1,2,4") -> list[int]:
    """Return the counts, each at least 1, of a comma-separated list.

    Raises:
        InputError: where one is no whole number of at least 1.
    """
    found = numbers(text, flag, example)
    for value in found:
        if value < 1 or value != int(value):
            raise InputError(f"{value:g} is not a count", place=flag, remedy=f"write e.g. {flag} {example}")
    return [int(value) for value in found]


def indices(text: str, flag: str, example: str) -> list[int]:
    """Return the whole numbers of at least 0 of a comma-separated list.

    Raises:
        InputError: where one is no such number.
    """
    found = numbers(text, flag, example)
    for value in found:
        if value < 0 or value != int(value):
            raise InputError(f"{value:g} is not a number of a GPU", place=flag, remedy=f"write e.g. {flag} {example}")
    return [int(value) for value in found]


def stragglers(items: list[str] | None) -> dict[int, float]:
    """Return rank to factor of `RANK:F` items.

    Raises:
        InputError: where an item is not `RANK:F` with a rank of at least 0, or a rank is given twice.
    """
    found: dict[int, float] = {}
    for item in items or []:
        rank, colon, factor = item.partition(":")
        if not colon or not (rank.isascii() and rank.isdecimal()):
            remedy = "write RANK:F, e.g. --straggler 3:1.5"
            raise InputError(f"{item!r} names no rank and factor", place="--straggler", remedy=remedy)
        _refuse_again(int(rank) in found, f"--straggler {rank}")
        found[int(rank)] = one_number(factor, "--straggler", "3:1.5")
    return found


def probabilities(items: list[str] | None) -> dict[str, float]:
    """Return name to probability of `LAYER:P` items.

    Raises:
        InputError: where an item is not `LAYER:P`, or a layer is given twice.
    """
    found: dict[str, float] = {}
    for item in items or []:
        name, _, probability = item.rpartition(":")
        if not name:
            remedy = "write LAYER:P, e.g. --drop encoder.layer.3:0.2"
            raise InputError(f"{item!r} names no layer and probability", place="--drop", remedy=remedy)
        _refuse_again(name in found, f"--drop {name}")
        found[name] = one_number(probability, "--drop", "encoder.layer.3:0.2")
    return found


def _refuse_again(known: bool, place: str) -> None:
    if known:
        raise InputError("is given twice and takes one value", place=place, remedy="keep one")


def read_text(path: str) -> str:
    """Return the text of a file, of standard input for `-`.

    Raises:
        InputError: where it cannot be read, or is no text.
    """
    from ddpsim import files

    return files.read_text(path, InputError, "give a file that exists")
