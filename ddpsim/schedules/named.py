"""Schemes by name: the shipped ones, and anybody's own by `package.module:function`."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from ddpsim.errors import InputError, UnknownNameError
from ddpsim.schedules import deepspeed, schemes, sharded
from ddpsim.schedules.asked import asked
from ddpsim.schedules.deepspeed import DeepSpeed
from ddpsim.schedules.schedule import Schedule, check
from ddpsim.schedules.setup import Setup
from ddpsim.units import parse_size

Make = Callable[[Setup], Schedule]


@dataclass(frozen=True, slots=True)
class Scheme:
    """A scheme is a name and what makes its schedule.

    Attributes:
        name: as it was asked for: `priority:4MiB`.
        make: from a setup to a schedule.
    """

    name: str
    make: Make

    def schedule(self, setup: Setup) -> Schedule:
        """Return the schedule of `setup`, checked.

        Raises:
            PlanError: a schedule that cannot be carried out; it names the message or the parameter.
            InputError: a scheme of one's own that returns no schedule.
        """
        made = self.make(setup)
        if not isinstance(made, Schedule):
            what = f"the scheme returned {type(made).__name__}, no `ddpsim.schedules.schedule.Schedule`"
            raise InputError(what, place=f"scheme {self.name!r}", remedy="return a schedule")
        made = replace(made, scheme=self.name)
        check(made, setup.parameters, setup.world_size)
        return made


def _plain(make: Make) -> Callable[[str, str], Make]:
    def read(name: str, options: str) -> Make:
        if options:
            raise InputError(f"takes no options, got {options!r}", place=f"scheme {name!r}", remedy=f"write {name}")
        return make

    return read


def _priority(name: str, options: str) -> Make:
    segment = round(parse_size(options, f"scheme {name!r}")) if options else None
    if segment is not None and segment < 1:
        raise InputError("a segment of 0 bytes", place=f"scheme {name!r}", remedy="write e.g. priority:4MiB")
    return lambda setup: schemes.priority(setup, segment)


def _fsdp2(name: str, options: str) -> Make:
    given = asked(sharded.FullyShard, options, f"scheme {name!r}")
    return lambda setup: sharded.fsdp2(setup, reshard=given.reshard, precision=given.precision)


def _hsdp(name: str, options: str) -> Make:
    shards, given = _hsdp_asked(name, options)
    return lambda setup: sharded.hsdp(setup, shards, reshard=given.reshard, precision=given.precision)


def _hsdp_asked(name: str, options: str) -> tuple[int, sharded.FullyShard]:
    shards, _, rest = options.partition(",")
    if not (shards.isascii() and shards.isdigit() and int(shards)):
        what = f"{shards!r} is no number of ranks that share a copy" if shards else "needs how many ranks share a copy"
        raise InputError(what, place=f"scheme {name!r}", remedy="write e.g. hsdp:8")
    return int(shards), asked(sharded.FullyShard, rest, f"scheme {name!r}")


def _deepspeed(make: Callable[[Setup, DeepSpeed], Schedule]) -> Callable[[str, str], Make]:
    def read(name: str, options: str) -> Make:
        config = asked(DeepSpeed, options, f"scheme {name!r}")
        return lambda setup: make(setup, config)

    return read


def _zero(ours: Make, theirs: Callable[[Setup, DeepSpeed], Schedule]) -> Callable[[str, str], Make]:
    """Return what reads `zero1`, or `zero1:deepspeed` with DeepSpeed's options behind."""

    def read(name: str, options: str) -> Make:
        word, _, rest = options.partition(",")
        if word == "deepspeed":
            return _deepspeed(theirs)(name, rest)
        if options:
            remedy = f"write {name}, or {name}:deepspeed with its options behind"
            raise InputError(f"it takes no option {options!r}", place=f"scheme {name!r}", remedy=remedy)
        return ours

    return read


_SCHEMES: Mapping[str, Callable[[str, str], Make]] = {
    "ddp": _plain(schemes.ddp),
    "naive": _plain(schemes.naive),
    "flat": _plain(schemes.flat),
    "priority": _priority,
    "dear": _plain(schemes.dear),
    "zero0": _deepspeed(deepspeed.zero0),
    "zero1": _zero(schemes.zero1, deepspeed.zero1),
    "zero2": _zero(schemes.zero2, deepspeed.zero2),
    "zero3": _deepspeed(deepspeed.zero3),
    "fsdp2": _fsdp2,
    "hsdp": _hsdp,
}
"""By name, what reads a scheme's options."""


def scheme_named(text: str) -> Scheme:
    """Return the scheme that `text` names: `ddp`, `priority:4MiB`, `package.module:function`, ...

    Raises:
        UnknownNameError: no such scheme; it names the nearest.
        InputError: options that the scheme does not take, or a function that cannot be imported.
    """
    name, _, options = text.partition(":")
    if "." in name:
        return Scheme(text, _own(name, options))
    if name not in _SCHEMES:
        raise UnknownNameError.among("scheme", name, list(_SCHEMES), place="scheme")
    return Scheme(text, _SCHEMES[name](name, options))


def fully_sharded(text: str) -> tuple[int | None, sharded.FullyShard] | None:
    """Return what `text` asks of `fully_shard`: ranks that share a copy (None: all), and its options.

    None where `text` names a scheme of another kind.

    Raises:
        InputError: options that the scheme does not take.
    """
    name, _, options = text.partition(":")
    if name == "fsdp2":
        return None, asked(sharded.FullyShard, options, f"scheme {name!r}")
    return _hsdp_asked(name, options) if name == "hsdp" else None


def as_deepspeed(text: str) -> bool:
    """Return whether `text` names a scheme as DeepSpeed carries it out: `zero3`, `zero1:deepspeed`."""
    name, _, options = text.partition(":")
    return name in ("zero0", "zero3") or (name in ("zero1", "zero2") and options.partition(",")[0] == "deepspeed")


def schemes_named(text: str) -> list[str]:
    """Return the schemes of a list: `ddp,fsdp2:noreshard,gather=bf16,hsdp:8`.

    What is no scheme's name is an option of the scheme before it.

    Raises:
        InputError: a scheme that `scheme_named` refuses, or one named twice.
    """
    found: list[str] = []
    for piece in text.split(","):
        name = piece.partition(":")[0]
        behind = found and ":" in found[-1] and name not in _SCHEMES and "." not in name
        if behind:
            found[-1] += f",{piece}"
        else:
            found.append(piece)
    for each in found:
        scheme_named(each)
        if found.count(each) > 1:
            raise InputError(f"{each} is named twice", place="schemes", remedy="name it once")
    return found


def _own(module: str, function: str) -> Make:
    place = f"scheme '{module}:{function}'"
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise InputError(f"cannot be imported: {error}", place=place, remedy="name package.module:function") from error
    if not callable(found):
        raise InputError("is no function", place=place, remedy="name a function from a setup to a schedule")
    return found  # type: ignore[no-any-return]
