"""Schemes by name: the shipped ones, and anybody's own by `package.module:function`."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from ddpsim.errors import InputError, UnknownNameError
from ddpsim.options.asked import asked, count
from ddpsim.schedules import (
    averaging,
    dataparallel,
    deepspeed,
    fused,
    gradientflow,
    parallax,
    schemes,
    servers,
    sharded,
)
from ddpsim.schedules.chunks import GradientFlow
from ddpsim.schedules.deepspeed import DeepSpeed
from ddpsim.schedules.outer import Outer
from ddpsim.schedules.schedule import Schedule, check
from ddpsim.schedules.servers import Servers
from ddpsim.schedules.setup import Setup
from ddpsim.units import parse_size

Make = Callable[[Setup], Schedule]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Scheme:
    """A scheme is a name and what makes its schedule.

    Attributes:
        name: as it was asked for: `priority:4MiB`.
        make: from a setup to a schedule.
        steps: of the optimizer, after which what is sent repeats.
        apart: whether ranks send each other nothing in the steps between.
    """

    name: str
    make: Make
    steps: int = 1
    apart: bool = False

    def schedule(self, setup: Setup) -> Schedule:
        """Return the schedule of `setup`, checked.

        Raises:
            PlanError: a schedule that cannot be carried out; it names the message or the parameter.
            InputError: a scheme of one's own that raises, or returns no schedule.
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
    place = f"scheme {name!r}"
    first, _, rest = options.partition(",")
    if "=" in first:
        first, rest = "", options
    segment = round(parse_size(first, place)) if first else None
    if segment is not None and segment < 1:
        raise InputError("a segment of 0 bytes", place=place, remedy="write e.g. priority:4MiB")
    credit = asked(schemes.Credit, rest, place).credit
    return lambda setup: schemes.priority(setup, segment, credit)


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


def _with(kind: type[T], make: Callable[[Setup, T], Schedule]) -> Callable[[str, str], Make]:
    """Return what reads the options of a scheme as a `kind`."""

    def read(name: str, options: str) -> Make:
        given = asked(kind, options, f"scheme {name!r}")
        return lambda setup: make(setup, given)

    return read


def _averaging(name: str, options: str) -> Make:
    steps, rest = _steps(name, options)
    if rest:
        raise InputError(f"it takes no option {rest!r}", place=f"scheme {name!r}", remedy=f"write {name}:{steps}")
    return lambda setup: averaging.averaging(setup, steps)


def _slowmo(name: str, options: str) -> Make:
    steps, rest = _steps(name, options)
    outer = asked(Outer, rest, f"scheme {name!r}")
    return lambda setup: averaging.slowmo(setup, steps, outer)


def _local_sgd(name: str, options: str) -> Make:
    steps, rest = _steps(name, options)
    given = asked(averaging.LocalSgd, rest, f"scheme {name!r}")
    return lambda setup: averaging.local_sgd(setup, steps, given)


def _steps(name: str, options: str) -> tuple[int, str]:
    """Return the steps from average to average, and the options behind them."""
    steps, _, rest = options.partition(",")
    if not steps:
        raise InputError(
            "needs how many steps are between averages", place=f"scheme {name!r}", remedy=f"write e.g. {name}:8"
        )
    return count(steps, f"scheme {name!r}"), rest


def _zero(ours: Make, theirs: Callable[[Setup, DeepSpeed], Schedule]) -> Callable[[str, str], Make]:
    """Return what reads `zero1`, or `zero1:deepspeed` with DeepSpeed's options behind."""

    def read(name: str, options: str) -> Make:
        word, _, rest = options.partition(",")
        if word == "deepspeed":
            return _with(DeepSpeed, theirs)(name, rest)
        if options:
            remedy = f"write {name}, or {name}:deepspeed with its options behind"
            raise InputError(f"it takes no option {options!r}", place=f"scheme {name!r}", remedy=remedy)
        return ours

    return read


_SCHEMES: Mapping[str, Callable[[str, str], Make]] = {
    "ddp": _plain(schemes.ddp),
    "naive": _plain(schemes.naive),
    "flat": _plain(schemes.flat),
    "dataparallel": _plain(dataparallel.dataparallel),
    "priority": _priority,
    "dear": _plain(schemes.dear),
    "zero0": _with(DeepSpeed, deepspeed.zero0),
    "zero1": _zero(schemes.zero1, deepspeed.zero1),
    "zero2": _zero(schemes.zero2, deepspeed.zero2),
    "zero3": _with(DeepSpeed, deepspeed.zero3),
    "fsdp2": _fsdp2,
    "hsdp": _hsdp,
    "horovod": _with(fused.Horovod, fused.horovod),
    "multiworker-mirrored": _with(fused.Packs, fused.multiworker_mirrored),
    "gradientflow": _with(GradientFlow, gradientflow.gradientflow),
    "parameter-server": _with(Servers, servers.parameter_server),
    "parallax": _with(parallax.Parallax, parallax.parallax),
    "averaging": _averaging,
    "slowmo": _slowmo,
    "local-sgd": _local_sgd,
}
"""By name, what reads a scheme's options."""

_PERIODIC = ("averaging", "slowmo", "local-sgd")
"""Schemes whose first option is the steps of the optimizer after which what they send repeats."""


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
    make = _SCHEMES[name](name, options)
    steps = _steps(name, options)[0] if name in _PERIODIC else 1
    return Scheme(text, make, steps, apart=name in _PERIODIC and name != "local-sgd")


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


def servers_named(text: str) -> Servers | None:
    """Return what `text` asks of parameter servers; None where it names a scheme of another kind.

    Raises:
        InputError: options that the scheme does not take.
    """
    name, _, options = text.partition(":")
    if name == "parallax":
        return Servers(asked(parallax.Parallax, options, f"scheme {name!r}").servers)
    return asked(Servers, options, f"scheme {name!r}") if name == "parameter-server" else None


def schemes_named(text: str) -> list[str]:
    """Return the schemes of a list: `ddp,fsdp2:noreshard,gather=bf16,hsdp:8`.

    What is no scheme's name is an option of the scheme before it.

    Raises:
        InputError: a scheme that `scheme_named` refuses, or one named twice.
    """
    found: list[str] = []
    for piece in text.split(","):
        name = piece.partition(":")[0]
        option = "=" in name or (name not in _SCHEMES and "." not in name)
        behind = found and ":" in found[-1] and option
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
    return partial(_called, found, place)


def _called(function: Make, place: str, setup: Setup) -> Schedule:
    """Return what a scheme of one's own makes of `setup`; what it raises says at which of its lines."""
    try:
        return function(setup)
    except InputError:
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        its_file = getattr(getattr(function, "__code__", None), "co_filename", None)
        last = ([frame for frame in frames if frame.filename == its_file] or frames)[-1]
        what = f"raised {type(error).__name__} at {os.path.basename(last.filename)}:{last.lineno}: {error}"
        raise InputError(what, place=place, remedy="mend the scheme") from error
