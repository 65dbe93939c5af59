from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
import torch

from ddpexec.__main__ import main
from ddpexec.groups.launched import abort_groups, join_launched
from ddpexec.groups.termination import raise_on_sigterm
from tests.ddpexec.groups import ranks


def held(rank: int) -> None:
    """Wait inside torch, where no signal is heard, as behind a kernel that waits for a rank that is gone."""
    behind: torch.futures.Future[None] = torch.futures.Future()
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
    with pytest.raises(SystemExit, match=r"^2$"), raise_on_sigterm(lambda: behind.set_result(None)):
        behind.wait()


def test_termination_is_heard_where_torch_holds_the_host() -> None:
    ranks.run_own(1, held, timeout_s=20)


def undisturbed(rank: int) -> bool:
    before = signal.getsignal(signal.SIGTERM), signal.set_wakeup_fd(-1)
    released: list[None] = []
    with raise_on_sigterm(lambda: released.append(None)):
        pass
    return (signal.getsignal(signal.SIGTERM), signal.set_wakeup_fd(-1)) == before and not released


def test_signals_are_as_they_were_after_a_run_that_ends_well() -> None:
    assert ranks.run_own(1, undisturbed) == [True]


@pytest.fixture
def nccl() -> mock.Mock:
    """The calls of a process group that says that it is NCCL's; it is gone when it is aborted."""
    calls = mock.Mock()
    here = [True]
    calls._abort_process_group.side_effect = here.clear
    calls.destroy_process_group.side_effect = here.clear
    functions = {
        "is_initialized": lambda: bool(here),
        "get_backend": lambda group=None: "nccl",
        "destroy_process_group": calls.destroy_process_group,
        "init_process_group": calls.start,
        "group": mock.Mock(),
        "get_world_size": lambda: 1,
    }
    abort = mock.patch("torch.distributed.distributed_c10d._abort_process_group", calls._abort_process_group)
    with abort, mock.patch.multiple("torch.distributed", **functions):
        yield calls


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The environment of one rank; what it says to others goes nowhere, and signals are heard after it."""
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "here", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    with (
        mock.patch("ddpexec.groups.launched.Communicator"),
        mock.patch("ddpexec.groups.launched.ignore_from_now_on"),
        mock.patch("ddpexec.commands.run.ignore_from_now_on"),
    ):
        yield


@pytest.mark.usefixtures("alone")
def test_what_nccl_waits_for_is_given_up_before_the_trace_is_read(nccl: mock.Mock, tmp_path: Path) -> None:
    running = mock.Mock(rank=0, world_size=1)
    running.train.side_effect = RuntimeError("a rank is gone")
    running.trace.side_effect = lambda: nccl.trace()
    with mock.patch("ddpexec.running.run.Run", return_value=running), mock.patch("ddpsim.trace.json.write_rank"):
        with pytest.raises(RuntimeError, match="is gone"):
            main(["run", "--model", "mlp", "--backend", "gloo", "--out", str(tmp_path)])
        abort_groups()
    assert [call[0] for call in nccl.mock_calls] == ["start", "_abort_process_group", "trace"]


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("error", [None, RuntimeError("a rank is gone")])
def test_process_groups_end_once_and_a_broken_one_of_nccl_is_not_waited_for(
    nccl: mock.Mock, error: RuntimeError | None
) -> None:
    caught = []
    try:
        with join_launched("run", "gloo"):
            if error is not None:
                raise error
    except RuntimeError as raised:
        caught.append(raised)
    assert caught == ([] if error is None else [error])
    ended = "destroy_process_group" if error is None else "_abort_process_group"
    assert [call[0] for call in nccl.mock_calls] == ["start", ended]
