"""Bucket caps as torch's constructor takes them, and the limits in bytes that they become.

`TorchCall` is a call of that constructor as data: its keywords, or the reason why there is none.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Annotated

from ddpsim.common.documents.fields import WRITTEN
from ddpsim.common.errors import InputError, PlanError
from ddpsim.common.options import text
from ddpsim.common.options.exclusions import refuse_excluded
from ddpsim.common.options.option import Option, Section, plain_signature
from ddpsim.common.units import MIB, mib_to_bytes

FIRST_BUCKET_BYTES = MIB
"""torch's `dist._DEFAULT_FIRST_BUCKET_BYTES`."""

DEFAULT_CAP_MB = 25
"""torch's `bucket_cap_mb` where none is given."""


@plain_signature
@dataclass(frozen=True, slots=True)
class BucketCaps:
    """The cap options of `DistributedDataParallel`: all None is torch's default, [1, 25] MiB.

    Attributes:
        bucket_cap_mb: one cap for every bucket, in MiB; 0 puts each gradient in a bucket of its own.
        first_bucket_mb: cap of the first bucket only, in MiB; the others keep `bucket_cap_mb`.
        bucket_cap_mb_list: caps of the first, second, ... bucket in MiB; the last repeats.

    Raises:
        PlanError: where two of them contradict each other, the list is empty, or a cap is negative.
    """

    bucket_cap_mb: Annotated[
        float | None,
        Option("One cap for every bucket, MiB; 0: a bucket a gradient. [torch: first 1, then 25]", "C", parse=text.cap),
        Section.BUCKETS,
        WRITTEN,
    ] = None
    first_bucket_mb: Annotated[
        float | None,
        Option("Cap of the first bucket only, MiB; `plan` takes it with `bucket_cap_mb`.", "M", parse=text.cap),
        Section.BUCKETS,
        WRITTEN,
    ] = None
    bucket_cap_mb_list: Annotated[
        tuple[float, ...] | None,
        Option("Caps of the first, second, ... bucket; the last repeats.", "1,25", parse=text.caps),
        Section.BUCKETS,
        WRITTEN,
    ] = None

    def __post_init__(self) -> None:
        if self.bucket_cap_mb_list is not None:
            refuse_excluded(self, "bucket caps", PlanError)
            if not self.bucket_cap_mb_list:
                raise PlanError("bucket_cap_mb_list is empty", remedy="give at least one cap in MiB, e.g. 1,25")
        self.limits()

    def limits(self) -> list[int]:
        """Return the limits in bytes, as the rebuilt and the find_unused assignment use them."""
        if self.bucket_cap_mb_list is not None:
            return [mib_to_bytes(cap, "bucket_cap_mb_list") for cap in self.bucket_cap_mb_list]
        cap = mib_to_bytes(DEFAULT_CAP_MB if self.bucket_cap_mb is None else self.bucket_cap_mb, "bucket_cap_mb")
        if self.first_bucket_mb is not None:
            return [mib_to_bytes(self.first_bucket_mb, "first_bucket_mb"), cap]
        return [FIRST_BUCKET_BYTES, cap] if self.bucket_cap_mb is None else [cap]

    def torch_arguments(self) -> dict[str, float | list[float]]:
        """Return the keyword arguments that give stock torch these limits; none for torch's default."""
        if self.bucket_cap_mb_list is not None:
            return {"bucket_cap_mb_list": [_plain(cap) for cap in self.bucket_cap_mb_list]}
        cap = DEFAULT_CAP_MB if self.bucket_cap_mb is None else self.bucket_cap_mb
        if self.first_bucket_mb is not None:
            return {"bucket_cap_mb_list": [_plain(self.first_bucket_mb), _plain(cap)]}
        return {} if self.bucket_cap_mb is None else {"bucket_cap_mb": _plain(cap)}


def _plain(cap: float) -> float:
    return int(cap) if cap == int(cap) else cap


_CAPS = ("bucket_cap_mb", "bucket_cap_mb_list")
_FLAGS = ("find_unused_parameters", "gradient_as_bucket_view", "broadcast_buffers", "static_graph")


@dataclass(frozen=True, slots=True)
class TorchCall:
    """The keywords with which `DistributedDataParallel(model, ...)` of stock torch makes given buckets.

    Caps of [1, 25] MiB, a flag and a note are
    `DistributedDataParallel(model, bucket_cap_mb_list=[1, 25], static_graph=True)  # a has no gradient`.

    Attributes:
        caps: the cap keywords; None where no call of torch's makes the buckets.
        flags: (keyword, value) in the order in which they are written.
        note: what follows as a comment; where there is no call, the reason.
    """

    caps: BucketCaps | None
    flags: Annotated[tuple[tuple[str, bool], ...], WRITTEN] = ()
    note: Annotated[str, WRITTEN] = ""

    @property
    def find_unused_parameters(self) -> bool:
        """Whether torch is told to search for unused parameters."""
        return ("find_unused_parameters", True) in self.flags

    def __str__(self) -> str:
        """Return the line to paste: the call, or a comment that says why there is none."""
        if self.caps is None:
            return f"# {self.note}"
        arguments = {**self.caps.torch_arguments(), **dict(self.flags)}
        passed = ", ".join(["model", *(f"{name}={value}" for name, value in arguments.items())])
        return f"DistributedDataParallel({passed})" + (f"  # {self.note}" if self.note else "")

    @classmethod
    def parse(cls, text: str) -> TorchCall:
        """Read the text of a call or of a comment, as a plan file holds it.

        Raises:
            PlanError: text that is neither, or an argument that no plan writes.
        """
        call, _, note = text.partition("#")
        note = note.removeprefix(" ")
        if text.startswith("#") and text.isprintable():
            return cls(None, note=note)
        try:
            arguments = _arguments(ast.parse(call.rstrip(" "), mode="eval").body) if text.isprintable() else None
            parsed = None if arguments is None else _build_call(arguments, note)
        except (InputError, SyntaxError, ValueError, OverflowError, RecursionError, MemoryError):
            parsed = None
        if parsed is None:
            remedy = (
                'expected e.g. "DistributedDataParallel(model, bucket_cap_mb=25)", or a comment that begins with "#"'
            )
            raise PlanError(f"{text[:80]!r} is no call of torch's constructor", remedy=remedy)
        return parsed


NO_CALL = TorchCall(None, note="no constructor argument of torch gives these buckets; run them with ddpexec")


def _arguments(call: ast.expr) -> dict[str, object] | None:
    """Return what a call `DistributedDataParallel(model, name=literal, ...)` passes; None of anything else."""
    if not isinstance(call, ast.Call) or [ast.unparse(part) for part in (call.func, *call.args)] != [
        "DistributedDataParallel",
        "model",
    ]:
        return None
    passed = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords if keyword.arg is not None}
    return passed if len(passed) == len(call.keywords) else None


def _build_call(arguments: dict[str, object], note: str) -> TorchCall | None:
    """Return the call with `arguments`; None where one is not written by any plan, or has a value it cannot take.

    Raises:
        InputError: caps that contradict each other, or are out of range.
    """
    flags = {name: value for name, value in arguments.items() if name not in _CAPS}
    cap, caps = arguments.get("bucket_cap_mb"), arguments.get("bucket_cap_mb_list")
    numbers = ([cap] if "bucket_cap_mb" in arguments else []) + (caps if isinstance(caps, list) else [])
    known = all(name in _FLAGS and isinstance(value, bool) for name, value in flags.items())
    if not known or ("bucket_cap_mb_list" in arguments and not isinstance(caps, list)):
        return None
    if not all(isinstance(each, int | float) and not isinstance(each, bool) for each in numbers):
        return None
    given_caps = BucketCaps(bucket_cap_mb=cap, bucket_cap_mb_list=tuple(caps) if isinstance(caps, list) else None)  # type: ignore[arg-type]
    return TorchCall(given_caps, tuple((name, bool(value)) for name, value in flags.items()), note)
