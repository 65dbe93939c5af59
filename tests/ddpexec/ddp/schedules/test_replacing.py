"""Another schedule put in force between two steps: weights, optimizers and hooks are those of one that stays."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ddpexec.ddp.parameters import collect
from ddpexec.ddp.scheduled_wrapper import ScheduledDataParallel
from ddpexec.errors import OptionError
from ddpsim.bucketing import BucketCaps, rebuilt_plan
from ddpsim.common.errors import PlanError
from ddpsim.schedules.named import scheme_named
from ddpsim.schedules.schemes import SAME_SUMS
from ddpsim.schedules.setup import SchemeInputs
from tests.ddpexec.ddp.schedules.training import CAPS, OPTIMIZERS, loss_of, mine, model_of, wrapped
from tests.ddpexec.groups import ranks

STEPS = 11
OTHER = BucketCaps(bucket_cap_mb=0.004)


def schedule_of(model: Any, scheme: str, caps: BucketCaps) -> tuple[tuple[tuple[int, ...], ...], Any]:
    """Return buckets and their schedule by `scheme`, as a prediction would make them."""
    policy = collect(model.module).policy
    groups = tuple(map(tuple, rebuilt_plan(policy, caps).groups()))
    setup = SchemeInputs(parameters=policy, buckets=groups, world_size=torch.distributed.get_world_size())
    return groups, None if scheme == "ddp" else scheme_named(scheme).schedule(setup)


def use(model: Any, scheme: str, caps: BucketCaps) -> None:
    groups, schedule = schedule_of(model, scheme, caps)
    model.use_schedule(caps, groups, schedule)


def train(model: Any, rank: int, schemes: tuple[str, ...], **options: Any) -> tuple[list[Any], Any]:
    """Train under a learning rate scheduler, by another scheme every second step; return weights after each step."""
    rates = torch.optim.lr_scheduler.StepLR(model.optimizer, step_size=2, gamma=0.7)
    groups = model.optimizer.param_groups
    after = []
    for step in range(STEPS):
        for micro in range(options.get("accumulate", 1)):
            with model.no_sync() if micro + 1 < options.get("accumulate", 1) else torch.enable_grad():
                loss_of(model, *mine(step, rank)).backward()
        model.optimizer.step()
        rates.step()
        if schemes and step % 2:
            use(model, schemes[step // 2 % len(schemes)], OTHER if step % 4 == 1 else CAPS)
        model.optimizer.zero_grad(set_to_none=step % 3 != 0)
        model.complete()
        after.append([parameter.detach().clone() for parameter in model.parameters()])
    assert model.optimizer.param_groups is groups
    return after, model.optimizer.state_dict()


@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
@pytest.mark.parametrize(
    "options",
    [{}, {"static_graph": True}, {"find_unused_parameters": True}, {"accumulate": 2}],
    ids=["plain", "static", "unused", "no_sync"],
)
@ranks.on(2)
def test_schemes_taken_in_turn_end_with_the_bits_and_the_optimizer_of_one(
    rank: int, optimizer: str, options: dict[str, Any]
) -> None:
    steps = {"accumulate": options.get("accumulate", 1)}
    options = {name: value for name, value in options.items() if name != "accumulate"}
    kept, state = train(wrapped(rank, "ddp", optimizer, **options), rank, (), **steps)
    model = wrapped(rank, "ddp", optimizer, **options)
    found, other = train(model, rank, (*SAME_SUMS[1:], "priority:64B", "ddp"), **steps)
    assert all(all(map(torch.equal, before, now)) for before, now in zip(kept, found, strict=True))
    values = [each["state"][index] for each in (state, other) for index in sorted(each["state"])]
    half = len(values) // 2
    assert all(
        torch.equal(torch.as_tensor(a[key]), torch.as_tensor(b[key]))
        for a, b in zip(values[:half], values[half:], strict=True)
        for key in a
        if a[key] is not None
    )
    assert model.optimizer.param_groups[0]["lr"] == pytest.approx({"sgd": 0.05, "adamw": 0.01}[optimizer] * 0.7**5)
    assert model.schedule.scheme == "priority:64B"


@ranks.on(3)
def test_on_three_ranks_weights_differ_by_rounding_alone(rank: int) -> None:
    kept, _ = train(wrapped(rank, "ddp"), rank, ())
    found, _ = train(wrapped(rank, "ddp"), rank, SAME_SUMS[1:])
    assert max(float((a - b).abs().max()) for a, b in zip(kept[-1], found[-1], strict=True)) < 1e-13


def left(rank: int) -> tuple[list[int], list[int], str]:
    """Return hooks of the module, and groups torch knows, before, with and after a scheme that needs more."""
    model = wrapped(rank, "ddp")
    known = torch.distributed.distributed_c10d._world.pg_map
    hooks, groups = [], []

    def count() -> None:
        loss_of(model, *mine(0, rank)).backward()
        model.optimizer.step()
        model.optimizer.zero_grad()
        hooks.append(sum(len(each._forward_pre_hooks) for each in model.modules()))
        groups.append(len(known))

    count()
    for scheme in ("dear", "ddp"):
        use(model, scheme, CAPS)
        model.release_streams()
        count()
    with pytest.raises(PlanError) as refused:
        model.use_schedule(CAPS, [(0,)])
    count()
    model.close()
    return hooks, groups, str(refused.value)


def test_a_scheme_that_was_in_force_leaves_no_hook_and_no_group() -> None:
    for hooks, groups, refused in ranks.run_own(2, left):
        assert hooks[1] > hooks[0]
        assert groups[1] > groups[0]
        assert (hooks[2], groups[2]) == (hooks[0], groups[0]) == (hooks[3], groups[3])
        assert "no bucket" in refused


@ranks.on(2)
def test_parameter_groups_that_differ_inside_a_message_are_refused(rank: int) -> None:
    """Training goes on as it was."""
    model = ScheduledDataParallel(model_of(), "dear", OPTIMIZERS["sgd"], caps=CAPS)
    model.optimizer.param_groups[0]["lr"] = 0.5
    differ = "'lr' is 0.05 and 0.5 in groups that are updated together"
    with pytest.raises(OptionError, match=differ):
        use(model, "ddp", CAPS)
    assert model.schedule.scheme == "dear"
    model.optimizer.param_groups[0]["lr"] = 0.05
    use(model, "ddp", CAPS)
    loss_of(model, *mine(0, rank)).backward()
    model.optimizer.param_groups[0]["lr"] = 0.5
    with pytest.raises(OptionError, match=differ):
        model.optimizer.step()
    for group in model.optimizer.param_groups:
        group["lr"] = 0.25
    model.optimizer.step()
    (own,) = model.optimizer.scheduler.updates
    assert own.optimizer.param_groups[0]["lr"] == 0.25


@ranks.on(2)
def test_a_loaded_state_is_taken_by_what_is_stepped_and_by_what_a_user_holds(rank: int) -> None:
    """With the schedule it was saved under and with another."""
    model = wrapped(rank, "ddp", "adamw")
    loss_of(model, *mine(0, rank)).backward()
    model.optimizer.step()
    state = model.optimizer.state_dict()
    for group in state["param_groups"]:
        group["lr"] = 0.125
    use(model, "dear", CAPS)
    model.optimizer.load_state_dict(state)
    rates = [group["lr"] for update in model.optimizer.scheduler.updates for group in update.groups]
    rates += [group["lr"] for group in model.optimizer.param_groups]
    assert len(rates) > 2
    assert set(rates) == {0.125}


def refusals(rank: int) -> list[str | None]:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    hooked = wrapped(rank, "ddp")
    hooked.register_comm_hook(None, allreduce_hook)
    others = [
        wrapped(rank, "zero1"),
        wrapped(rank, "ddp", every=2),
        wrapped(rank, "ddp", accumulate=2),
        wrapped(rank, "ddp", overlap=False),
        wrapped(rank, "slowmo:2"),
    ]
    found = [each.fixed for each in (wrapped(rank, "dear"), wrapped(rank, "priority:64B"), hooked, *others)]
    for each in others:
        each.close()
    return found


def test_what_may_not_be_replaced_is_said() -> None:
    words = [None, None, "hook", "zero1", "every 2", "of 2 iterations", "overlap=False", "slowmo:2"]
    for said, word in zip(ranks.run_own(2, refusals)[0], words, strict=True):
        assert (said is None) if word is None else (said is not None and word in said), (said, word)
