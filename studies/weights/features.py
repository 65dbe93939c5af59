"""What cases ask for of what DDP has: static graphs, communication hooks, uneven inputs, mixed precision.

A scheme that does not take one refuses it where it is constructed, or, of uneven inputs, where `join` is called.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook, fp16_compress_hook
from torch.nn.parallel.distributed import _MixedPrecision

if TYPE_CHECKING:
    from studies.weights.cases import Case

_SUMS = ("ddp", "naive", "flat", "priority", "horovod", "multiworker-mirrored")
TAKERS = {
    "hook": _SUMS,
    "hook fp16": _SUMS,
    "join": (*_SUMS, "dear"),
    "join present": (*_SUMS, "dear"),
    "mixed float32": tuple(name for name in _SUMS if name != "priority"),
    "mixed bfloat16": tuple(name for name in _SUMS if name != "priority"),
}
"""By feature the families that take it, with some options at least; `static` is taken by all that are scheduled."""
HOOKS = {"hook": allreduce_hook, "hook fp16": fp16_compress_hook}
"""torch's communication hooks."""
_OFTEN, _REFUSED = 0.4, 0.1
"""Of the cases that could have one, those that have a feature; of these, those whose scheme may refuse it."""


def featured(pick: random.Random, case: Case) -> Case:
    """Return `case` with a feature, or without one as most are."""
    if pick.random() >= _OFTEN:
        return case
    any_of = pick.random() < _REFUSED
    feature = pick.choice(["static", *(name for name, takers in TAKERS.items() if any_of or case.family in takers)])
    options = dict(case.options)
    if feature == "static":
        options |= {"static_graph": True, "find_unused_parameters": pick.random() < 0.3}
        return replace(case, feature=feature, options=options)
    options["learn"] = 0
    if feature.startswith("join"):
        return replace(case, feature=feature, options=options, looks=False, resumes=0)
    if feature.startswith("hook"):
        plain = feature == "hook" or not (case.sparse or {torch.bfloat16, torch.complex64} & set(case.dtypes))
        return replace(case, feature=feature if plain else "hook", options=options)
    options = {name: value for name, value in options.items() if name not in ("every", "accumulate")}
    options["find_unused_parameters"] = False
    # bfloat16 has eight bits: an optimizer that divides by a gradient's size moves by more than they are off.
    optimizer = case.optimizer if feature == "mixed float32" else pick.choice(("sgd", "momentum"))
    return replace(
        case, feature=feature, options=options, optimizer=optimizer, dtypes=(torch.float64,), sparse=None,
        unused=False, by_rank=False, micros=1, how="one",
    )  # fmt: skip


def mixed_precision(feature: str) -> _MixedPrecision | None:
    """Return torch's configuration of a feature; None where it is not mixed precision."""
    low = lowered_to(feature)
    return None if low is None else _MixedPrecision(low, None, None)


def lowered_to(feature: str) -> torch.dtype | None:
    """Return the dtype that is computed in; None where it is the parameters' own."""
    word, _, name = feature.partition(" ")
    return getattr(torch, name) if word == "mixed" else None
