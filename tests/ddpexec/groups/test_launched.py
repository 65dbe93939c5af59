from __future__ import annotations

from collections.abc import Callable, Iterator
from unittest import mock

import pytest

torch = pytest.importorskip("torch")

from ddpexec.groups.launched import launched  # noqa: E402
from ddpsim.errors import InputError  # noqa: E402

Join = Callable[..., mock.Mock]


@pytest.fixture
def join(monkeypatch: pytest.MonkeyPatch) -> Iterator[Join]:
    """Join as rank 1 of some on a machine that has two GPUs; return the call of `init_process_group`."""
    start = mock.Mock()
    functions = {
        "init_process_group": start,
        "is_initialized": lambda: False,
        "is_nccl_available": lambda: True,
        "get_world_size": lambda: 4,
        "group": mock.Mock(),
    }
    gpus = {"is_available": lambda: True, "device_count": lambda: 2, "set_device": mock.Mock()}
    monkeypatch.delenv("NCCL_MULTI_RANK_GPU_ENABLE", raising=False)

    def as_rank_one(ranks: int, **options: str) -> mock.Mock:
        environment = {"RANK": 1, "LOCAL_RANK": 1, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
        for name, value in (environment | {"MASTER_ADDR": "here", "MASTER_PORT": 1}).items():
            monkeypatch.setenv(name, str(value))
        with launched("run", **options) as rank:
            start.device = rank.device
        return start

    with (
        mock.patch.multiple("torch.distributed", **functions),
        mock.patch.multiple("torch.cuda", **gpus),
        mock.patch("ddpexec.groups.launched.Communicator"),
    ):
        yield as_rank_one


def test_nccl_is_told_the_ranks_gpu(join: Join) -> None:
    start = join(2)
    assert start.call_args.args == ("nccl",)
    assert start.call_args.kwargs["device_id"] == start.device == torch.device("cuda", 1)


def test_gloo_is_told_no_gpu_though_its_ranks_may_share_one(join: Join) -> None:
    start = join(4, device="cuda")
    assert start.call_args.args == ("gloo",)
    assert start.call_args.kwargs["device_id"] is None
    assert start.device == torch.device("cuda", 1)


def test_more_ranks_than_gpus_are_refused_under_nccl(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"--backend nccl: .*; 4 ranks on this machine share 2; start 2 ranks, "):
        join(4, backend="nccl")
    monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1")
    assert join(4, backend="nccl").device == torch.device("cuda", 1)
