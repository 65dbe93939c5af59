"""What the executor does on real ranks: weights to the bit, buckets, and messages with their bytes, by scheme.

Cases are those of `studies.weights`, drawn by a seed of this file's own. Left out is what no run repeats to the bit:
servers whose ranks go on without each other, Horovod, whose cycles fuse what is ready, orders that are learnt from
times, and a tuner, whose plans take force when they are found.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from studies.weights.cases import SCHEMES, Case, case_of
from studies.weights.training import Weights, trained
from tests.ddpexec.groups import ranks
from tests.unchanged.messages import in_order, spied

SEED, A_FAMILY = 52, 8
FAMILIES = [name for name in SCHEMES if name not in ("tuned", "horovod")]


def cases() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield what each case comes to, those of two ranks first: ranks stand, and each number has its own."""
    drawn = [case_of(SEED, number, FAMILIES) for number in range(A_FAMILY * len(FAMILIES))]
    for case in sorted(drawn, key=lambda case: (case.world > 2, case.world)):
        if "async" not in case.scheme and not case.options.get("learn"):
            yield f"executor: {case}", lambda case=case: ranks.run(case.world, carried_out, case, timeout_s=150)


def carried_out(rank: int, case: Case) -> dict[str, Any]:
    """Return what one rank did."""
    torch.manual_seed(case.seed)
    with spied() as seen:
        outcome = trained(case, rank)
    return {
        "refused": outcome.refused,
        "buckets": [list(group) for group in outcome.groups],
        "weights": [digest(each) for each in outcome.weights],
        "messages": in_order(seen, fixed="powersgd" not in str(case)),
    }


def digest(weights: Weights) -> str:
    """Return the weights' bits in short."""
    found = hashlib.sha256()
    for each in weights:
        found.update(each.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return f"x{found.hexdigest()[:16]}"
