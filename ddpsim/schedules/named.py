"""Schemes by name: the shipped ones with their options, and anybody's own.

`scheme_named` is the way in. A scheme's module is imported when it is asked for, so that a command which takes `ddp`
loads no other.

Another scheme is a function from `SchemeInputs` to a `Schedule` and a reader in `_SCHEMES`. Where it sums each gradient
whole, or has no buckets, `SAME_SUMS` or `WITHOUT_BUCKETS` of `schemes` name it; the help of `scheme` in
`ddpsim.simulation.jobs.job_options` and `docs/reference/schemes.md` list it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, NoReturn, TypeVar

from ddpsim.collectives.servers import ServerPlaces
from ddpsim.common.errors import InputError, UnknownNameError
from ddpsim.common.strict import parse_whole_number
from ddpsim.common.suboptions import count, parse_options
from ddpsim.common.units import parse_size
from ddpsim.schedules import schemes, servers
from ddpsim.schedules.schedule import Schedule
from ddpsim.schedules.scheme import Make, Runner, Scheme, is_own, load_own_scheme
from ddpsim.schedules.servers import Servers
from ddpsim.schedules.setup import SchemeInputs

if TYPE_CHECKING:
    from ddpsim.schedules.sharded import FullyShard

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Text:
    """What a user wrote: the name of a scheme, a colon, its options.

    Attributes:
        whole: the name and the options.
        options: those that have not been read.
    """

    whole: str
    name: str
    options: str

    @classmethod
    def of(cls, whole: str) -> _Text:
        name, _, options = whole.partition(":")
        return cls(whole, name, options)

    @property
    def place(self) -> str:
        return f"scheme {self.name!r}"

    def split_first(self) -> tuple[str, _Text]:
        """Return the first option, and the text without it."""
        first, _, rest = self.options.partition(",")
        return first, replace(self, options=rest)

    def parse_as(self, kind: type[T]) -> T:
        """Return the options as a `kind`."""
        return parse_options(kind, self.options, self.place)

    def refuse_rest(self, remedy: str) -> None:
        """Refuse options that are left."""
        if self.options:
            self.refuse(f"it takes no option {self.options!r}", remedy)

    def refuse(self, what: str, remedy: str) -> NoReturn:
        raise InputError(what, place=self.place, remedy=remedy)


Read = Callable[[_Text], Scheme]


def _plain(make: Make, runner: Runner = "ddpexec") -> Read:
    """Return what reads the name of a scheme without options."""

    def read(text: _Text) -> Scheme:
        if text.options:
            text.refuse(f"takes no options, got {text.options!r}", f"write {text.name}")
        return Scheme(text.whole, make, runner=runner)

    return read


def _with(kind: type[T], make: Callable[[SchemeInputs, T], Schedule], runner: Runner = "ddpexec") -> Read:
    """Return what reads the options of a scheme as a `kind`."""

    def read(text: _Text) -> Scheme:
        options = text.parse_as(kind)
        return Scheme(text.whole, lambda setup: make(setup, options), runner=runner)

    return read


def _priority(text: _Text) -> Scheme:
    first, rest = text.split_first()
    if "=" in first:
        first, rest = "", text
    segment = round(parse_size(first, text.place)) if first else None
    if segment is not None and segment < 1:
        text.refuse("a segment of 0 bytes", "write e.g. priority:4MiB")
    credit = rest.parse_as(schemes.PriorityOptions).credit
    return Scheme(text.whole, lambda setup: schemes.priority(setup, segment, credit))


def _fsdp2(text: _Text) -> Scheme:
    from ddpsim.schedules.sharded import FullyShard

    return _fully_sharded(text.whole, text.parse_as(FullyShard))


def _hsdp(text: _Text) -> Scheme:
    from ddpsim.schedules.sharded import FullyShard

    first, rest = text.split_first()
    shards = parse_whole_number(first)
    if not shards:
        what = f"{first!r} is no number of ranks that share a copy" if first else "needs how many ranks share a copy"
        text.refuse(what, "write e.g. hsdp:8")
    return _fully_sharded(text.whole, replace(rest.parse_as(FullyShard), shards=shards))


def _fully_sharded(name: str, options: FullyShard) -> Scheme:
    from ddpsim.schedules import sharded

    return Scheme(name, lambda setup: sharded.fully_shard(setup, options), runner="fully_shard", fully_shard=options)


def _zero(ours: Make) -> Read:
    """Return what reads `zero1`, or `zero1:deepspeed` with DeepSpeed's options behind."""

    def read(text: _Text) -> Scheme:
        word, rest = text.split_first()
        if word == "deepspeed":
            return _deepspeed(rest)
        text.refuse_rest(f"write {text.name}, or {text.name}:deepspeed with its options behind")
        return Scheme(text.whole, ours)

    return read


# Other systems' schemes have a module each, imported where one of them is asked for, as that of sharded ones is.


def _deepspeed(text: _Text) -> Scheme:
    from ddpsim.schedules import deepspeed

    makes = {"zero0": deepspeed.zero0, "zero1": deepspeed.zero1, "zero2": deepspeed.zero2, "zero3": deepspeed.zero3}
    return _with(deepspeed.DeepSpeed, makes[text.name], "DeepSpeed")(text)


def _dataparallel(text: _Text) -> Scheme:
    from ddpsim.schedules.dataparallel import DataParallelOptions, dataparallel

    return _with(DataParallelOptions, dataparallel, "DataParallel")(text)


def _horovod(text: _Text) -> Scheme:
    from ddpsim.schedules.fused import Horovod, horovod

    return _with(Horovod, horovod)(text)


def _multiworker_mirrored(text: _Text) -> Scheme:
    from ddpsim.schedules.fused import MultiWorkerOptions, multiworker_mirrored

    return _with(MultiWorkerOptions, multiworker_mirrored)(text)


def _gradientflow(text: _Text) -> Scheme:
    from ddpsim.schedules.chunks import GradientFlow
    from ddpsim.schedules.fused import gradientflow

    return _with(GradientFlow, gradientflow)(text)


def _parameter_server(text: _Text) -> Scheme:
    servers_given = text.parse_as(Servers)
    return Scheme(
        text.whole,
        lambda setup: servers.parameter_server(setup, servers_given),
        servers=servers_given,
        ranks_meet=not servers_given.asynchronous,
    )


def _parallax(text: _Text) -> Scheme:
    from ddpsim.schedules.parallax import Parallax, parallax

    options = text.parse_as(Parallax)
    return Scheme(text.whole, lambda setup: parallax(setup, options), servers=ServerPlaces(servers=options.servers))


def _averaging(text: _Text) -> Scheme:
    from ddpsim.schedules.averaging import averaging

    steps, rest = _steps(text)
    rest.refuse_rest(f"write {text.name}:{steps}")
    return Scheme(text.whole, lambda setup: averaging(setup, steps), steps, apart=True)


def _slowmo(text: _Text) -> Scheme:
    from ddpsim.schedules.averaging import slowmo
    from ddpsim.schedules.outer import OuterStep

    steps, rest = _steps(text)
    outer = rest.parse_as(OuterStep)
    return Scheme(text.whole, lambda setup: slowmo(setup, steps, outer), steps, apart=True)


def _local_sgd(text: _Text) -> Scheme:
    from ddpsim.schedules.averaging import LocalSgd, local_sgd

    steps, rest = _steps(text)
    options = rest.parse_as(LocalSgd)
    return Scheme(text.whole, lambda setup: local_sgd(setup, steps, options), steps)


def _steps(text: _Text) -> tuple[int, _Text]:
    """Return the steps from average to average, and the text behind them."""
    steps, rest = text.split_first()
    if not steps:
        text.refuse("needs how many steps are between averages", f"write e.g. {text.name}:8")
    return count(steps, text.place), rest


_SCHEMES: Mapping[str, Read] = {
    "ddp": _plain(schemes.ddp),
    "naive": _plain(schemes.naive),
    "flat": _plain(schemes.flat),
    "dataparallel": _dataparallel,
    "priority": _priority,
    "dear": _plain(schemes.dear),
    "zero0": _deepspeed,
    "zero1": _zero(schemes.zero1),
    "zero2": _zero(schemes.zero2),
    "zero3": _deepspeed,
    "fsdp2": _fsdp2,
    "hsdp": _hsdp,
    "horovod": _horovod,
    "multiworker-mirrored": _multiworker_mirrored,
    "gradientflow": _gradientflow,
    "parameter-server": _parameter_server,
    "parallax": _parallax,
    "averaging": _averaging,
    "slowmo": _slowmo,
    "local-sgd": _local_sgd,
}
"""By name, what reads a scheme's options."""


def names_code(text: str) -> bool:
    """Return whether `text` names a user's own function, which `scheme_named` would import and so run."""
    return _Text.of(text).name not in _SCHEMES and is_own(text)


@cache
def _read_shipped(text: str) -> Scheme | None:
    """Return the shipped scheme that `text` names; None where it names none. Each is read once."""
    written = _Text.of(text)
    return _SCHEMES[written.name](written) if written.name in _SCHEMES else None


def scheme_named(text: str) -> Scheme:
    """Return the scheme that `text` names: `ddp`, `priority:4MiB`, `package.module:function`, ...

    Raises:
        UnknownNameError: no such scheme; it names the nearest.
        InputError: options that the scheme does not take, or a function that cannot be imported.
    """
    if (shipped := _read_shipped(text)) is not None:
        return shipped
    if names_code(text):
        return load_own_scheme(text)
    raise UnknownNameError.among("scheme", _Text.of(text).name, list(_SCHEMES), place="scheme")


def schemes_named(text: str) -> list[str]:
    """Return the schemes of a list: `ddp,fsdp2:noreshard,gather=bf16,hsdp:8`.

    What names no scheme, a shipped one or one of one's own, is an option of the scheme before it.

    Raises:
        InputError: a scheme that `scheme_named` refuses, or one named twice.
    """
    names: list[str] = []
    for piece in text.split(","):
        names_one = _Text.of(piece).name in _SCHEMES or names_code(piece)
        if names and ":" in names[-1] and not names_one:
            names[-1] += f",{piece}"
        else:
            names.append(piece)
    for each in names:
        try:
            scheme_named(each)
        except InputError as error:
            if error.place == "scheme":
                error.place = "schemes"
            raise
        if names.count(each) > 1:
            raise InputError(f"{each} is named twice", place="schemes", remedy="name it once")
    return names
