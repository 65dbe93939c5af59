"""The names of arguments, `_get_ddp_logging_data()`, and torch's other methods with an underscore, beside torch's."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import nn

from ddpexec.ddp.wrapper import DistributedDataParallel
from ddpexec.errors import OptionError
from tests.ddpexec.groups import ranks

STOCK = nn.parallel.DistributedDataParallel


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 40), nn.Tanh(), nn.Linear(40, 4))


def data_of(kind: Any, options: dict[str, Any], steps: int, rate: int = 2) -> list[dict[str, Any]]:
    ddp = kind(model(), **options)
    ddp._set_ddp_runtime_logging_sample_rate(rate)
    found = []
    for _ in range(steps):
        ddp(torch.ones(2, 4)).sum().backward()
        found.append(ddp._get_ddp_logging_data())
    return found


@ranks.on(2)
def test_logging_data_are_torchs_but_for_the_times(rank: int) -> None:
    cases: list[dict[str, Any]] = [
        {}, {"bucket_cap_mb": 0.0005}, {"find_unused_parameters": True}, {"static_graph": True},
        {"gradient_as_bucket_view": True, "forward_sync_buffers": False},
    ]  # fmt: skip
    for options in cases:
        mine, stock = (data_of(kind, options, 15) for kind in (DistributedDataParallel, STOCK))
        assert [data["iteration"] for data in mine[1:]] == [data["iteration"] for data in stock[1:]]
        ours, theirs = mine[-1], stock[-1]
        assert set(theirs) <= set(ours)
        for key, value in theirs.items():
            assert "_time" in key or ours[key] == value, (options, key)
        assert ours["iteration"] == 14
        for key in ("forward_compute_time", "backward_compute_time", "backward_comm_time"):
            assert ours[f"avg_{key}"] > 0
            assert 0 < ours[key] < 1e9
        assert ours["backward_compute_time_start"] - ours["forward_compute_time_start"] == ours["forward_compute_time"]
        assert ours["backward_compute_comm_overlap_time"] <= ours["backward_comm_time"]


@ranks.on(2)
def test_built_in_hooks_do_what_torchs_do(rank: int) -> None:
    kinds = torch.distributed.BuiltinCommHookType
    for hook in (kinds.ALLREDUCE, kinds.FP16_COMPRESS):
        results = []
        for kind in (DistributedDataParallel, STOCK):
            ddp = kind(model(), bucket_cap_mb=0.0005)
            ddp._register_builtin_comm_hook(hook)
            for _ in range(3):
                ddp.zero_grad()
                ddp(torch.full((2, 4), 0.1 + rank)).square().sum().backward()
            assert ddp._get_ddp_logging_data()["comm_hook"] == str(hook)
            results.append([parameter.grad for parameter in ddp.parameters()])
        assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    ddp = DistributedDataParallel(model())
    with pytest.raises(OptionError, match="3 is not a built-in communication hook; give dist"):
        ddp._register_builtin_comm_hook(3)
    with pytest.raises(OptionError, match="should be equal or greater than 1, it is 0"):
        ddp._set_ddp_runtime_logging_sample_rate(0)
    with pytest.raises(OptionError, match="SyncBatchNorm layers only work with GPU modules; use BatchNorm layers"):
        DistributedDataParallel(nn.SyncBatchNorm(3))


@ranks.on(2)
def test_used_parameters_and_whether_the_graph_was_static(rank: int) -> None:
    class Branch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(2, 2, bias=False) for _ in range(3))

        def forward(self, which: list[int]) -> Any:
            return sum(self.layers[index](torch.ones(1, 2)) for index in which)

    for steps, static in (([[0, 1]] * 3, True), ([[0], [0, 2 - rank], [0]], False)):
        ddps = [kind(Branch(), find_unused_parameters=True) for kind in (DistributedDataParallel, STOCK)]
        for which in steps:
            for ddp in ddps:
                ddp(which).sum().backward()
            maps = [ddp.reducer._get_local_used_map().tolist() for ddp in ddps]
            assert maps[0] == maps[1]
        assert maps[0][0] == 2
        assert [ddp.reducer._ddp_graph_static() for ddp in ddps] == [static] * 2


@ranks.on(2)
def test_a_static_graph_may_be_asked_for_after_construction(rank: int) -> None:
    found = []
    for kind in (DistributedDataParallel, STOCK):
        ddp = kind(model(), find_unused_parameters=True, bucket_cap_mb=0.0005)
        ddp._set_static_graph()
        with pytest.warns(UserWarning, match="no need to set it again"):
            ddp._set_static_graph()
        for _ in range(5):
            ddp(torch.ones(2, 4)).sum().backward()
        data = ddp._get_ddp_logging_data()
        found.append({key: value for key, value in data.items() if "bucket" in key or key == "static_graph"})
    assert found[0] == found[1]
    assert found[0]["has_rebuilt_buckets"] == 1


SHARED = sorted(
    name
    for name in set(dir(STOCK)) - set(dir(torch.nn.Module)) | {"__init__"}
    if callable(getattr(STOCK, name)) and callable(getattr(DistributedDataParallel, name, None))
)


@pytest.mark.parametrize("name", SHARED)
def test_arguments_are_named_as_torchs(name: str) -> None:
    ours, theirs = (
        list(inspect.signature(getattr(kind, name)).parameters) for kind in (DistributedDataParallel, STOCK)
    )
    ours = ["self" if argument == "ddp" else argument for argument in ours]  # functions of a wrapper, as methods of it
    assert ours[: len(theirs)] == theirs
