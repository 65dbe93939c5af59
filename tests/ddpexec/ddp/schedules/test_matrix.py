"""Every scheme by what DDP can: it ends where DDP does, at each step, or says why not.

Under lower precision and with uneven inputs: `test_features`.
"""

from __future__ import annotations

import copy
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from ddpexec.ddp.scheduled_wrapper import ScheduledDataParallel
from ddpexec.ddp.wrapper import DistributedDataParallel
from ddpexec.errors import OptionError
from tests.ddpexec.ddp.schedules.test_features import AVERAGES, OTHERS, SUMS, Twice
from tests.ddpexec.ddp.schedules.training import CAPS, apart, mine, model_of
from tests.ddpexec.groups import ranks

STEPS = 5
SCHEMES = (*SUMS, *OTHERS, *AVERAGES)
AS_DDP = (*SUMS, "priority:256B", "dear", "zero1", "zero2")
"""Schemes whose ranks step by the mean of all gradients, as DDP's do."""
TAKEN = {
    "nothing": SCHEMES,
    "no_sync": SCHEMES,
    "find_unused_parameters": SCHEMES,
    "static_graph": SCHEMES,
    "clip_grad_norm_": SCHEMES,
    "comm hook": SUMS,
    "groups in turn": SCHEMES,
}
"""By feature, who takes it; all others refuse."""


def sgd(parameters: Any) -> Any:
    return torch.optim.SGD(parameters, lr=0.05)


def wrapped(scheme: str, feature: str) -> tuple[Any, Any]:
    """Return a wrapper and its optimizer, DDP's where there is no scheme."""
    some_unused = feature in ("find_unused_parameters", "static_graph", "comm hook")
    static = feature == "static_graph"
    model = Twice(recomputed=static) if some_unused else model_of()
    options: dict[str, Any] = {"static_graph" if static else "find_unused_parameters": True} if some_unused else {}
    if feature == "groups in turn":
        options["process_group"] = [torch.distributed.new_group() for _ in range(3)]
    if not scheme:
        made: Any = DistributedDataParallel(model, **options)
        return made, sgd(list(model.parameters()))
    made = ScheduledDataParallel(model, scheme, sgd, caps=CAPS, **options)
    if feature == "comm hook":
        made.register_comm_hook(None, default_hooks.allreduce_hook)
    return made, made.optimizer


def steps(rank: int, made: Any, optimizer: Any, feature: str, begin: int = 0, end: int = STEPS) -> list[list[Any]]:
    """Train; return the weights after every step, as the wrapped module's state dict has them."""
    seen = []
    for step in range(begin, end):
        inputs, targets = mine(step, rank)
        local = feature == "no_sync" and step % 2 == 0
        with made.no_sync() if local else nullcontext():
            nn.functional.mse_loss(made(inputs), targets).backward()
        if local:
            continue
        if feature == "clip_grad_norm_":
            if isinstance(made, ScheduledDataParallel):
                made.clip_grad_norm_(0.05)
            else:
                nn.utils.clip_grad_norm_(made.parameters(), 0.05)
        optimizer.step()
        optimizer.zero_grad()
        seen.append([value.clone() for value in made.module.state_dict().values()])
    return seen


def trained(rank: int, scheme: str, feature: str) -> list[list[Any]]:
    """Return the weights of each step."""
    made, optimizer = wrapped(scheme, feature)
    seen = steps(rank, made, optimizer, feature)
    if scheme:
        made.close()
    return seen


@pytest.mark.parametrize("feature", TAKEN)
@ranks.on(2, timeout_s=150)
def test_a_scheme_ends_where_ddp_does_or_says_why_it_cannot(rank: int, feature: str) -> None:
    ddps = trained(rank, "", feature)
    found: dict[str, float | str] = {}
    for scheme in SCHEMES:
        try:
            seen = trained(rank, scheme, feature)
            own = feature == "static_graph" and scheme not in AS_DDP
            found[scheme] = max(map(apart, seen, trained(rank, scheme, "find_unused_parameters") if own else ddps))
        except OptionError as error:
            found[scheme] = str(error)
    assert {scheme for scheme, outcome in found.items() if isinstance(outcome, float)} == set(TAKEN[feature])
    for scheme, outcome in found.items():
        if isinstance(outcome, str):
            assert outcome.startswith(f"scheme {scheme.partition(':')[0]}"), outcome
            assert "; use" in outcome or "; give" in outcome, outcome
        elif scheme in AS_DDP or feature == "static_graph":
            assert outcome < 1e-10, scheme


@ranks.on(2, timeout_s=150)
def test_a_scheme_is_saved_and_taken_up_again_after_any_step(rank: int) -> None:
    found = {}
    for scheme in SCHEMES:
        made, optimizer = wrapped(scheme, "nothing")
        saved, weights = [], []
        for step in range(STEPS):
            [weights] = steps(rank, made, optimizer, "nothing", begin=step, end=step + 1)
            shards = optimizer.shard_state_dict()
            saved.append(copy.deepcopy((made.module.state_dict(), shards, made.scheme_state_dict())))
        other, optimizer = wrapped(scheme, "nothing")
        found[scheme] = 0.0
        for after, (module, shards, kept) in enumerate(saved[:-1], start=1):
            other.module.load_state_dict(module)
            optimizer.load_shard_state_dict(shards)
            other.load_scheme_state_dict(kept)
            [*_, again] = steps(rank, other, optimizer, "nothing", begin=after)
            found[scheme] = max(found[scheme], apart(again, weights))
    assert max(found.values()) < 1e-12, found
