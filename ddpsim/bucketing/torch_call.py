"""A call of torch's constructor as data: its keywords, or the reason why there is none; text at the edges alone."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from ddpsim.bucketing.caps import BucketCaps
from ddpsim.errors import InputError, PlanError

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
    flags: tuple[tuple[str, bool], ...] = ()
    note: str = ""

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
            found = None if arguments is None else _of(arguments, note)
        except (InputError, SyntaxError, ValueError, OverflowError, RecursionError, MemoryError):
            found = None
        if found is None:
            remedy = (
                'expected e.g. "DistributedDataParallel(model, bucket_cap_mb=25)", or a comment that begins with "#"'
            )
            raise PlanError(f"{text[:80]!r} is no call of torch's constructor", remedy=remedy)
        return found


NO_CALL = TorchCall(None, note="no constructor argument of torch gives these buckets; run them with ddpexec")


def _arguments(call: ast.expr) -> dict[str, object] | None:
    """Return what a call `DistributedDataParallel(model, name=literal, ...)` passes; None of anything else."""
    if not isinstance(call, ast.Call) or [ast.unparse(part) for part in (call.func, *call.args)] != [
        "DistributedDataParallel",
        "model",
    ]:
        return None
    found = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords if keyword.arg is not None}
    return found if len(found) == len(call.keywords) else None


def _of(arguments: dict[str, object], note: str) -> TorchCall | None:
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
    found = BucketCaps(bucket_cap_mb=cap, bucket_cap_mb_list=tuple(caps) if isinstance(caps, list) else None)  # type: ignore[arg-type]
    return TorchCall(found, tuple((name, bool(value)) for name, value in flags.items()), note)
