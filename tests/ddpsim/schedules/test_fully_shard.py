"""Sharded schemes beside what torch's `fully_shard` launches, in its order, in a group that sends nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from ddpsim.bucketing.assign import Parameter
from ddpsim.common.errors import PlanError
from ddpsim.schedules.named import scheme_named
from ddpsim.schedules.points import BACKWARD_END, Point, PointKind
from ddpsim.schedules.schedule import Schedule, queue_of
from ddpsim.schedules.setup import SchemeInputs

WORLD = 8
Sent = tuple[str, int, int]
"""An operation, its bytes as nccl-tests counts them, and the ranks of its group."""


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.into, self.out = nn.LayerNorm(8), nn.Linear(8, 20), nn.Linear(20, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.out(self.into(self.norm(x)))  # type: ignore[no-any-return]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.blocks = nn.Embedding(50, 8), nn.ModuleList(Block() for _ in range(4))
        self.norm = nn.LayerNorm(8)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        return self.norm(x)  # type: ignore[no-any-return]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Sent]]:
    """What the process group is asked to send, in order."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=WORLD)
    found: list[Sent] = []

    def listened(name: str, operation: str, whole: str) -> None:
        original = getattr(dist, name)

        def listening(*args: Tensor, **given: Any) -> object:
            message = args[0] if args else given[whole]
            found.append((operation, message.numel() * message.element_size(), given["group"].size()))
            return original(*args, **given)

        monkeypatch.setattr(dist, name, listening)

    listened("all_gather_single", "all_gather", "output_tensor")
    listened("reduce_scatter_single", "reduce_scatter", "input")
    listened("all_reduce", "allreduce", "tensor")
    yield found
    dist.destroy_process_group()


def parameters_of(model: nn.Module) -> list[Parameter]:
    return [Parameter(name, tuple(parameter.shape)) for name, parameter in model.named_parameters()]


def setup_of(parameters: list[Parameter]) -> SchemeInputs:
    return SchemeInputs(parameters=parameters, buckets=[tuple(reversed(range(len(parameters))))], world_size=WORLD)


def train(model: nn.Module, sent: list[Sent]) -> None:
    """Make two iterations, of which `sent` holds what the second sends."""
    for _ in range(2):
        sent.clear()
        model(torch.randint(50, (2, 5))).sum().backward()


def launched(schedule: Schedule, setup: SchemeInputs) -> list[Sent]:
    """Return what a rank launches in an iteration that passes every point, uses in order and gradients in reverse."""
    queue, count = queue_of(schedule), len(setup.parameters)
    points = [Point(PointKind.FORWARD, index) for index in range(count)]
    points += [
        Point(kind, index) for index in reversed(range(count)) for kind in (PointKind.BACKWARD, PointKind.GRADIENT)
    ]
    numbers = queue.begin()
    for point in [*points, BACKWARD_END]:
        numbers += queue.mark_passed(point)
    messages = [schedule.messages[number] for number in numbers]
    return [(m.op.value, m.size_bytes, schedule.groups.get(m.group, WORLD)) for m in messages]


@pytest.mark.parametrize(
    ("scheme", "mesh", "reshard"),
    [
        ("fsdp2", (8,), None),
        ("fsdp2:noreshard", (8,), False),
        ("fsdp2:reshard_root", (8,), True),
        ("fsdp2:gather=bf16,reduce=fp32", (8,), None),
        ("hsdp:4", (2, 4), None),
        ("hsdp:2,noreshard,gather=bf16", (4, 2), False),
        ("hsdp:8", (1, 8), None),
    ],
)
def test_launches_what_fully_shard_launches_in_its_order(
    scheme: str, mesh: tuple[int, ...], reshard: bool | None, sent: list[Sent]
) -> None:
    model = Model()
    setup = setup_of(parameters_of(model))
    gather = torch.bfloat16 if "gather" in scheme else None
    options = {
        "mesh": init_device_mesh("cpu", mesh, mesh_dim_names=("replica", "shard")[-len(mesh) :]),
        "mp_policy": MixedPrecisionPolicy(
            param_dtype=gather, reduce_dtype=torch.float32 if "reduce" in scheme else None
        ),
        "reshard_after_forward": reshard,
    }
    for block in model.blocks:
        fully_shard(block, **options)  # type: ignore[call-overload]
    fully_shard(model, **options)  # type: ignore[call-overload]
    train(model, sent)
    torchs = [each for each in sent if each[2] > 1]
    assert launched(scheme_named(scheme).schedule(setup), setup) == torchs


PREFETCHED = [(1, 1), (2, 2), (3, 1), (1, 3)]


@pytest.mark.parametrize("reshard_root", [False, True])
@pytest.mark.parametrize(("forward", "backward"), PREFETCHED)
def test_prefetched_units_are_gathered_in_torch_s_order(
    forward: int, backward: int, reshard_root: bool, sent: list[Sent]
) -> None:
    model = Model()
    setup = setup_of(parameters_of(model))
    mesh = init_device_mesh("cpu", (8,), mesh_dim_names=("shard",))
    for each in (*model.blocks, model):
        fully_shard(each, mesh=mesh, reshard_after_forward=True if reshard_root else None)
    entered: list[Any] = [model, *model.blocks]
    left = [model, *reversed(model.blocks)]
    for order, ahead, name in (
        (entered, forward, "set_modules_to_forward_prefetch"),
        (left, backward, "set_modules_to_backward_prefetch"),
    ):
        for place, unit in enumerate(order):
            if behind := order[place + 1 : place + 1 + ahead]:
                getattr(unit, name)(behind)
    train(model, sent)
    given = f"forward_prefetch={forward},backward_prefetch={backward}{',reshard_root' if reshard_root else ''}"
    assert launched(scheme_named(f"fsdp2:{given}").schedule(setup), setup) == sent


@pytest.mark.parametrize(
    ("wrap", "modules"),
    [
        ("blocks.*+words", ["words", *(f"blocks.{n}" for n in range(4))]),
        ("blocks.0+blocks.2", ["blocks.0", "blocks.2"]),
        ("blocks.*.into+blocks.*", [*(f"blocks.{n}.into" for n in range(4)), *(f"blocks.{n}" for n in range(4))]),
    ],
)
def test_units_are_the_modules_that_the_user_wraps(wrap: str, modules: list[str], sent: list[Sent]) -> None:
    model = Model()
    setup = setup_of(parameters_of(model))
    mesh = init_device_mesh("cpu", (8,), mesh_dim_names=("shard",))
    for name in modules:
        fully_shard(model.get_submodule(name), mesh=mesh)
    fully_shard(model, mesh=mesh)
    train(model, sent)
    assert launched(scheme_named(f"fsdp2:wrap={wrap}").schedule(setup), setup) == sent


def test_a_module_to_wrap_that_is_none_is_refused() -> None:
    setup = setup_of(parameters_of(Model()))
    for wrap in ("blocks.9", "block", "layer.*", ""):
        with pytest.raises(PlanError, match="no module with parameters is called"):
            scheme_named(f"fsdp2:wrap={wrap}").schedule(setup)
