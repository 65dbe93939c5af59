from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import pytest
import torch

from ddpexec.errors import LostRankError
from ddpexec.groups.launched import join_launched
from ddpsim.common.errors import InputError
from ddpsim.workload.files import save_workload
from tests import forked
from tests.ddpexec.small import small_workload

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
        listens = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": rank_zero.getsockname()[1]}
        for name, value in (environment | listens).items():
            monkeypatch.setenv(name, str(value))
        with join_launched("run", **options) as rank:
            start.device = rank.device
        return start

    with (
        socket.create_server(("127.0.0.1", 0)) as rank_zero,
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
    with pytest.raises(InputError, match=r"backend=nccl: .*; 4 ranks on this machine share 2; start 2 ranks, "):
        join(4, backend="nccl")
    monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1")
    assert join(4, backend="nccl").device == torch.device("cuda", 1)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_never_comes_is_one_message(monkeypatch: pytest.MonkeyPatch, rank: int) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for name, value in {"RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}.items():
        monkeypatch.setenv(name, str(value))
    words = rf"^rank {rank}: the 2 ranks did not all meet at 127\.0\.0\.1:{port} within 1 s: "
    with pytest.raises(LostRankError, match=words), join_launched("run", "gloo", timeout_s=1):
        pass
    assert not torch.distributed.is_initialized()


@pytest.mark.parametrize("rank", [0, 1])
def test_what_one_rank_alone_cannot_do_is_one_message_of_rank_0(tmp_path: Path, rank: int) -> None:
    save_workload(small_workload(), tmp_path / "w.json")
    (tmp_path / f"out/rank{rank}.json.gz/in the way").mkdir(parents=True)
    run = ["run", "--workload", "w.json", "--iterations", "2", "--timeout", "30s", "--out", "out"]
    done = forked.command(
        [*forked.TORCHRUN, "2", "-m", "ddpexec", *run], tmp_path, {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    )
    assert done.returncode == 2
    # On a busy machine the other may not have read in time why this one gave up, and tells as well that one is gone.
    told = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    (said,) = (line for line in told if f"out/rank{rank}.json.gz" in line)
    assert len(told) <= 2, told
    assert ("rank 0: " in said and "as rank 1 gave up: " in said) == (rank == 1), said
    assert "cannot be removed" in said
    assert "Traceback" not in done.stderr
