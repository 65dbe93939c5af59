from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from ddpexec.ddp.wrapper import DistributedDataParallel
from tests.ddpexec.ddp.schedules.training import (
    OPTIMIZERS,
    SCHEMES,
    STEPS,
    alone,
    apart,
    batch,
    loss_of,
    mine,
    model_of,
    take_step,
    train,
    weights_of,
    wrapped,
)
from tests.ddpexec.groups import ranks
from tests.profile import training_steps

FEWER = training_steps(8)
"""Steps of accumulated gradients, of which each has three iterations."""
FUSED = (
    "horovod:fusion=1KiB,cycle=2ms", "horovod", "multiworker-mirrored", "multiworker-mirrored:pack=1KiB",
)  # fmt: skip


def trained(rank: int, scheme: str, optimizer: str, clip: float | None = None, **options: Any) -> list[Any]:
    return train(wrapped(rank, scheme, optimizer, **options), rank, clip=clip)


def check_weights(clipped: dict[str, tuple[float | None, ...]], otherwise: str) -> None:
    """Hold each scheme against one process.

    Args:
        clipped: by optimizer, what its gradients are clipped to, in turn.
        otherwise: the optimizer of the runs that learn an order, without overlap, and with fusion buffers or packs.
    """
    rank, world, found = torch.distributed.get_rank(), torch.distributed.get_world_size(), {}
    for optimizer, clips in clipped.items():
        for clip in clips:
            expected = alone(optimizer, world, clip)[-1]
            for scheme in SCHEMES:
                found[f"{scheme} {optimizer} {clip}"] = apart(trained(rank, scheme, optimizer, clip), expected)
    expected = alone(otherwise, world)[-1]
    for scheme in ("priority:256B", "dear", "zero1"):
        for how, options in {"learned": {"learn": 3}, "off": {"overlap": False}}.items():
            found[f"{scheme} {otherwise} {how}"] = apart(trained(rank, scheme, otherwise, **options), expected)
    for scheme in FUSED:
        for learn in (0, 3):
            found[f"{scheme} {otherwise} {learn}"] = apart(trained(rank, scheme, otherwise, learn=learn), expected)
    assert len(found) == 2 * (len(SCHEMES) + 3 + len(FUSED))
    assert {name: far for name, far in found.items() if far > 1e-10} == {}


@pytest.mark.parametrize("otherwise", OPTIMIZERS)
@ranks.on(2, timeout_s=110)
def test_steps_end_with_the_weights_of_one_process(rank: int, otherwise: str) -> None:
    check_weights({otherwise: (None, 0.1)}, otherwise)


@pytest.mark.needs("minutes")
@ranks.on(4, timeout_s=110)
def test_four_ranks_end_with_the_weights_of_one_process_too(rank: int) -> None:
    """Each scheme with each optimizer, one of which clips: two ranks try every two of them together."""
    check_weights({"sgd": (None,), "adamw": (0.1,)}, "sgd")


@pytest.mark.parametrize("world", [2, 3, pytest.param(4, marks=pytest.mark.needs("minutes"))])
@ranks.on("world")
def test_weights_are_ddp_s_bit_by_bit_where_sums_have_its_order(rank: int) -> None:
    model = model_of(3)
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.002, first_bucket_mb=0.0005, rebuild="never", plan=None)
    plan = ddp.reducer.plan
    updating = OPTIMIZERS["sgd"](ddp.parameters())
    for step in range(STEPS):
        loss_of(ddp, *mine(step, rank)).backward()
        updating.step()
        updating.zero_grad()
    weights = weights_of(model)
    found = {
        scheme: apart(trained(rank, scheme, "sgd", plan=plan, caps=None), weights) == 0
        for scheme in ("ddp", "priority", "dear", "zero1", "zero2")
    }
    assert set(found.values()) == {True}, found


@pytest.mark.parametrize("scheme", ["naive", "priority", "dear", "zero1"])
@ranks.on(2)
def test_checkpoints_and_evaluation_between_steps_see_what_is_pending(rank: int, scheme: str) -> None:
    """Checkpoints after each step are those of one process, and an optimizer goes on from one."""
    expected = alone("adamw", 2)
    made = wrapped(rank, scheme, "adamw")
    found: dict[str, float] = {"weights": 0.0, "evaluated": 0.0}
    for step in range(STEPS):
        take_step(made, step, rank)
        if step % 2:
            state = made.state_dict() if step % 4 == 1 else made.module.state_dict()
            found["weights"] = max(found["weights"], apart(state.values(), expected[step]))
        else:
            with torch.no_grad():
                loss = loss_of(made, *mine(step, rank))
                plain = model_of()
                torch.nn.utils.vector_to_parameters(
                    torch.cat([w.flatten() for w in expected[step]]), plain.parameters()
                )
                found["evaluated"] = max(found["evaluated"], float((loss - loss_of(plain, *mine(step, rank))).abs()))
        if step == STEPS // 2 and not scheme.startswith("zero"):
            weights, state = made.module.state_dict(), copy.deepcopy(made.optimizer.state_dict())
            plain = model_of()
            plain.load_state_dict(weights)
            going_on = OPTIMIZERS["adamw"](plain.parameters())
            going_on.load_state_dict(copy.deepcopy(state))
            other = wrapped(rank, scheme, "adamw")
            other.module.load_state_dict(weights)
            other.optimizer.load_state_dict(state)
            for model, updating in ((plain, going_on), (other, other.optimizer)):
                updating.zero_grad()
                if model is plain:
                    loss_of(model, *batch(step + 1, 2)).backward()
                else:
                    loss_of(model, *mine(step + 1, rank)).backward()
                updating.step()
            found["continued alone"] = apart([p.detach() for p in plain.parameters()], expected[step + 1])
            found["continued"] = apart(other.module.state_dict().values(), expected[step + 1])
    assert {name: far for name, far in found.items() if far > 1e-10} == {}


@ranks.on(2, timeout_s=110)
def test_accumulated_gradients_add_up_as_in_one_process(rank: int) -> None:
    """By `every`, under `no_sync`, and reduced each time."""
    expected, found = alone("sgd", 2, every=3)[FEWER - 1], {}
    for scheme in SCHEMES:
        for how in ("every", "no_sync", "each"):
            made = wrapped(rank, scheme, every=3 if how == "every" else 1)
            for micro in range(3 * FEWER):
                inputs, targets = mine(micro, rank)
                if how == "no_sync" and micro % 3 < 2:
                    with made.no_sync():
                        loss_of(made, inputs, targets).backward()
                else:
                    loss_of(made, inputs, targets).backward()
                if micro % 3 == 2:
                    made.optimizer.step()
                    made.optimizer.zero_grad()
            found[f"{scheme} {how}"] = apart(made.module.state_dict().values(), expected)
    assert {name: far for name, far in found.items() if far > 1e-10} == {}


@pytest.mark.parametrize("scheme", ["priority", "zero1"])
@ranks.on(2)
def test_a_pending_step_keeps_the_learning_rate_it_was_asked_for_with(rank: int, scheme: str) -> None:
    """The learning rate changes after each step."""
    made, model = wrapped(rank, scheme), model_of()
    plain = OPTIMIZERS["sgd"](model.parameters())
    rates = [torch.optim.lr_scheduler.ExponentialLR(each, 0.8) for each in (made.optimizer, plain)]
    for step in range(6):
        loss_of(made, *mine(step, rank)).backward()
        loss_of(model, *batch(step, 2)).backward()
        for each in (made.optimizer, plain):
            each.step()
            each.zero_grad()
        for rate in rates:
            rate.step()
    assert apart(made.module.state_dict().values(), [p.detach() for p in model.parameters()]) < 1e-10
