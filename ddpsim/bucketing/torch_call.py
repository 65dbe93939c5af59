"""The text of a call of torch's constructor, written and read; what it cannot say follows as a comment."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from ddpsim.bucketing.caps import BucketCaps
from ddpsim.errors import InputError, PlanError

NO_CALL = "# no constructor argument of torch gives these buckets; run them with ddpexec"

_CAPS = ("bucket_cap_mb", "bucket_cap_mb_list")
_FLAGS = ("find_unused_parameters", "gradient_as_bucket_view", "broadcast_buffers", "static_graph")


def constructor_call(caps: BucketCaps, flags: Mapping[str, bool] | None = None, note: str = "") -> str:
    """Return the call of torch's constructor with these caps and flags, and `note` as a comment behind it."""
    arguments = {**caps.torch_arguments(), **(flags or {})}
    call = f"DistributedDataParallel({', '.join(['model', *(f'{name}={value}' for name, value in arguments.items())])})"
    return f"{call}  # {note}" if note else call


def call_arguments(text: str) -> dict[str, object] | None:
    """Return the keyword arguments of a constructor call; None of a comment, which says that there is no call.

    Raises:
        PlanError: text that is neither, or an argument that no plan writes.
    """
    if text.startswith("#") and text.isprintable():
        return None
    try:
        call = ast.parse(text, mode="eval").body if text.isprintable() else None
        found = _arguments(call)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        found = None
    if found is None or not _fits(found):
        remedy = 'expected e.g. "DistributedDataParallel(model, bucket_cap_mb=25)", or a comment that begins with "#"'
        raise PlanError(f"{text[:80]!r} is no call of torch's constructor", remedy=remedy)
    return found


def caps_of_call(arguments: Mapping[str, object]) -> BucketCaps:
    """Return the caps among the keyword arguments of a call."""
    cap, caps = arguments.get("bucket_cap_mb"), arguments.get("bucket_cap_mb_list")
    return BucketCaps(
        bucket_cap_mb=float(cap) if isinstance(cap, int | float) else None,
        bucket_cap_mb_list=tuple(caps) if isinstance(caps, list) else None,
    )


def _arguments(call: ast.expr | None) -> dict[str, object] | None:
    """Return what a call `DistributedDataParallel(model, name=literal, ...)` passes; None of anything else."""
    if not isinstance(call, ast.Call) or [ast.unparse(part) for part in (call.func, *call.args)] != [
        "DistributedDataParallel",
        "model",
    ]:
        return None
    found = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords if keyword.arg is not None}
    return found if len(found) == len(call.keywords) else None


def _fits(arguments: Mapping[str, object]) -> bool:
    """Whether every argument is one that a plan writes, with a value that it takes."""
    for name, value in arguments.items():
        numbers = value if name == "bucket_cap_mb_list" and isinstance(value, list) else [value]
        if name in _CAPS and not all(isinstance(cap, int | float) and not isinstance(cap, bool) for cap in numbers):
            return False
        if (name in _FLAGS and not isinstance(value, bool)) or name not in (*_CAPS, *_FLAGS):
            return False
    try:
        caps_of_call(arguments)
    except (InputError, OverflowError):
        return False
    return True
