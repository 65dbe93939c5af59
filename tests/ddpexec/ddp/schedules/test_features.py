"""Lower precision, uneven inputs and hooks under schemes: each ends where DDP does, or is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.optim import _apply_optimizer_in_backward
from torch.nn.parallel.distributed import _MixedPrecision
from torch.utils.checkpoint import checkpoint

from ddpexec.ddp.scheduled_wrapper import ScheduledDataParallel
from ddpexec.ddp.wrapper import DistributedDataParallel
from ddpexec.errors import OptionError
from tests.ddpexec.ddp.schedules.training import CAPS, OPTIMIZERS, apart, mine, weights_of
from tests.ddpexec.groups import ranks

SUMS = ("naive", "flat", "ddp", "priority", "horovod", "multiworker-mirrored")
OTHERS = ("priority:256B", "dear", "zero1", "zero2", "gradientflow")
LOWERED = ("naive", "flat", "ddp", "horovod", "multiworker-mirrored")
AVERAGES = ("averaging:2", "slowmo:2", "local-sgd:2")
STEPS = 6


class Twice(nn.Module):
    """Uses one layer twice, recomputed in backward where asked, so that its gradient comes twice, and one never."""

    def __init__(self, *, recomputed: bool) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.first, self.shared, self.unused = nn.Linear(6, 9), nn.Linear(9, 9), nn.Linear(2, 2)
        self.last = nn.Linear(9, 3)
        self.recomputed = recomputed
        self.double()

    def forward(self, x: Any) -> Any:
        x = torch.tanh(self.first(x))
        for _ in range(2):
            x = checkpoint(self.shared, x, use_reentrant=True) if self.recomputed else self.shared(x)
            x = torch.tanh(x)
        return self.last(x)


@ranks.on(2, timeout_s=110)
def test_mixed_precision_ends_where_ddps_does_or_is_refused(rank: int) -> None:
    found: dict[str, float | str] = {}
    expected: dict[str, list[Any]] = {}
    for scheme in ("", *SUMS, *OTHERS, *AVERAGES, *(f"{name}, sums in fp32" for name in ("", *SUMS, "dear"))):
        name, _, wide = scheme.partition(",")
        config = _MixedPrecision(torch.bfloat16, torch.float32 if wide else torch.bfloat16, None)
        model = nn.Sequential(nn.Linear(6, 9), nn.LayerNorm(9), nn.Tanh(), nn.Linear(9, 3))
        with torch.no_grad():
            for number, parameter in enumerate(model.parameters()):
                parameter.copy_(torch.linspace(-1, 1, parameter.numel()).view_as(parameter) / (1 + number))
        before = [tensor.dtype for tensor in model.state_dict().values()]
        try:
            made: Any
            if name:
                made = ScheduledDataParallel(model, name, OPTIMIZERS["sgd"], caps=CAPS, mixed_precision=config)
                optimizer = made.optimizer
            else:
                made = DistributedDataParallel(model, mixed_precision=config)
                optimizer = OPTIMIZERS["sgd"](list(model.parameters()))
        except OptionError as error:
            found[scheme] = str(error)
            continue
        for step in range(STEPS):
            inputs, targets = mine(step, rank)
            with torch.no_grad():
                assert made(inputs).dtype == torch.bfloat16
            output = made(inputs)
            assert output.dtype == torch.bfloat16
            nn.functional.mse_loss(output.double(), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
        made.eval()
        assert [tensor.dtype for tensor in model.state_dict().values()] == before
        weights_now = weights_of(model)
        found[scheme] = apart(weights_now, expected.setdefault(wide, weights_now))
    assert apart(*expected.values()) > 0  # the type of the sums tells
    for scheme, outcome in found.items():
        if scheme.partition(",")[0] in ("", *LOWERED):
            assert outcome == 0, (scheme, outcome)
        else:
            assert str(outcome).startswith("scheme"), (scheme, outcome)
            assert "mixed_precision: it " in str(outcome)


def uneven(rank: int, made: Any, optimizer: Any, by_initial: bool) -> list[Any]:
    """Return the weights after ranks of which each has two inputs more than the one before."""
    with made.join(divide_by_initial_world_size=by_initial):
        for step in range(2 + 2 * rank):
            inputs, targets = mine(step, rank)
            if step == 1:
                with made.no_sync():
                    nn.functional.mse_loss(made(inputs), targets).backward()
                continue
            nn.functional.mse_loss(made(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
    return weights_of(made.module)


@ranks.on(3, timeout_s=110)
def test_uneven_inputs_end_where_ddp_does_or_are_refused(rank: int) -> None:
    found: dict[str, float | str] = {}
    for by_initial in (True, False):
        ddp = DistributedDataParallel(Twice(recomputed=False), find_unused_parameters=True)
        plain = torch.optim.SGD(ddp.parameters(), lr=0.05)
        expected = uneven(rank, ddp, plain, by_initial)
        for scheme in (*SUMS, *OTHERS, *AVERAGES):
            made = ScheduledDataParallel(
                Twice(recomputed=False), scheme, lambda p: torch.optim.SGD(p, lr=0.05), caps=CAPS,
                find_unused_parameters=True,
            )  # fmt: skip
            try:
                found[f"{scheme} {by_initial}"] = apart(uneven(rank, made, made.optimizer, by_initial), expected)
            except OptionError as error:
                found[f"{scheme} {by_initial}"] = str(error)
    for name, outcome in found.items():
        if name.startswith((*SUMS, "dear")):
            assert isinstance(outcome, float), outcome
            assert outcome < 1e-10, name
        else:
            assert str(outcome).startswith("scheme"), name
            assert "a rank without input would have to" in str(outcome)


@ranks.on(1)
def test_a_hook_waits_until_the_schedule_is_made(rank: int) -> None:
    made = ScheduledDataParallel(Twice(recomputed=False), "ddp", OPTIMIZERS["sgd"], learn=2)
    with pytest.raises(OptionError, match="the schedule is still to be made"):
        made.register_comm_hook(None, default_hooks.allreduce_hook)
    with pytest.raises(TypeError, match="must be callable"):
        made.register_comm_hook(None, 1)  # type: ignore[arg-type]


@ranks.on(1)
def test_a_module_prepared_for_ddp_alone_is_refused(rank: int) -> None:
    ignoring, stepping = Twice(recomputed=False), Twice(recomputed=False)
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(ignoring, ["first.weight"])
    _apply_optimizer_in_backward(torch.optim.SGD, stepping.parameters(), {"lr": 0.1})
    said = "^scheme zero1: first.weight is to be left alone", "its optimizers step in backward"
    for model, words in zip((ignoring, stepping), said, strict=True):
        with pytest.raises(OptionError, match=words):
            ScheduledDataParallel(model, "zero1", OPTIMIZERS["sgd"])


class Complex(nn.Module):
    """Its gradients are complex, and differ by rank."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(1, 6) * (1 + 2j) / 7)

    def forward(self, factor: float) -> Any:
        return (self.weight * factor).abs().sum() + (self.weight * factor).imag.square().sum()


@ranks.on(2)
def test_a_hook_may_hold_the_parts_of_complex_numbers_as_torchs_own_does(rank: int) -> None:
    """A step by torch's class, by ours and by schemes, with torch's hook of an allreduce."""
    found = []
    for wrap in (nn.parallel.DistributedDataParallel, DistributedDataParallel, "ddp", "naive"):
        model = Complex()
        made: Any
        if isinstance(wrap, str):
            made = ScheduledDataParallel(model, wrap, OPTIMIZERS["sgd"])
            optimizer = made.optimizer
        else:
            made, optimizer = wrap(model), OPTIMIZERS["sgd"](list(model.parameters()))
        made.register_comm_hook(None, default_hooks.allreduce_hook)
        made(rank + 1.0).backward()
        optimizer.step()
        found.append(model.weight.detach().clone())
    for each in found:
        assert apart([each], [found[0]]) < 1e-6


class Leaving(nn.Module):
    """Its last layer is left out where a step asks for it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6).double(), nn.Linear(6, 3).double()

    def forward(self, x: Any, leave: bool) -> Any:
        x = torch.tanh(self.first(x))
        return x if leave else self.last(x)


def left_by_all(rank: int) -> list[Any]:
    """Return how large the gradient is of a layer that no rank with input uses any more; None where it has none."""
    found: list[Any] = []
    for wrap in (nn.parallel.DistributedDataParallel, DistributedDataParallel, "ddp", "naive"):
        model = Leaving()
        made: Any
        if isinstance(wrap, str):
            made = ScheduledDataParallel(model, wrap, OPTIMIZERS["sgd"], find_unused_parameters=True)
        else:
            made = wrap(model, find_unused_parameters=True)
        with made.join():
            for step in range(1 + 2 * rank):
                made(mine(step, rank)[0], step == 2).square().mean().backward()
                gradient = model.last.weight.grad
                found.append(None if gradient is None else float(gradient.abs().sum()))
                made.zero_grad(set_to_none=True)
    return found[2::3] if rank else []


def test_of_a_rank_without_input_nothing_counts_as_used() -> None:
    """torch's class goes on counting what was used before, as the page of differences says."""
    assert ranks.run(2, left_by_all)[1] == [0.0, None, None, None]
