"""A process group over MPI, under mpirun and under torchrun; what is lost, and what is refused."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from unittest import mock

import pytest
import torch

pytest.importorskip("mpi4py")

from ddpexec.groups import environment as mpi_environment
from ddpexec.groups import mpi_world
from ddpexec.groups.mpi_work import MpiCalls, MpiError, check_tensor
from ddpexec.groups.notes import find_ended_ranks, find_place
from ddpsim.common.errors import InputError

needs_mpirun = pytest.mark.skipif(shutil.which("mpirun") is None, reason="no Open MPI")
ROOT = Path(__file__).parents[3]
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", "2", sys.executable]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
PROGRAM = ["-m", "tests.ddpexec.groups.mpi_program"]


def environment() -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PMIX_"))}
    return {**own, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "PRTE_ALLOW_RUN_AS_ROOT": "1"}


def ended(command: list[str], timeout_s: float = 110) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=timeout_s, check=False
    )


@needs_mpirun
@pytest.mark.needs("minutes")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("launcher", [MPIRUN, TORCHRUN], ids=["mpirun", "torchrun"])
def test_collectives_and_weights_are_gloo_s(launcher: list[str]) -> None:
    done = ended([*launcher, *PROGRAM], 290)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("all equal") == 1


@needs_mpirun
@pytest.mark.needs("wait")
@pytest.mark.timeout(300)
def test_a_killed_rank_ends_the_others(tmp_path: Path) -> None:
    command = [*MPIRUN, "-m", "ddpexec", "run", "--backend", "mpi", "--model", "mlp", "--iterations", "100000"]
    with (tmp_path / "stderr").open("w") as log:
        process = subprocess.Popen(
            [*command, "--out", str(tmp_path / "run")], cwd=ROOT, env=environment(), stderr=log, stdout=log
        )
    try:
        until = time.monotonic() + 200
        while "iteration 10 of" not in (tmp_path / "stderr").read_text():
            assert time.monotonic() < until, (tmp_path / "stderr").read_text()
            assert process.poll() is None, (tmp_path / "stderr").read_text()
            time.sleep(0.2)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(children[-1]), signal.SIGKILL)
        assert process.wait(30) != 0
        places = {rank: (find_place()[0], int(child)) for rank, child in enumerate(children)}
        until = time.monotonic() + 30
        while len(find_ended_ranks(places)) < len(places) and time.monotonic() < until:
            time.sleep(0.1)
        assert len(find_ended_ranks(places)) == len(places)
    finally:
        process.kill()


@needs_mpirun
@pytest.mark.timeout(240)
def test_a_device_that_mpi_is_not_used_for_is_one_message(tmp_path: Path) -> None:
    run = ["-m", "ddpexec", "run", "--backend", "mpi", "--device", "cuda", "--model", "mlp", "--out", str(tmp_path)]
    done = ended([*MPIRUN, *run], 200)
    assert done.returncode == 2
    said = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert said == ["error: --device cuda: MPI is used for what lies on a CPU; use gloo or nccl"]
    assert "Traceback" not in done.stderr


def test_mpirun_is_heard_as_torchrun_is() -> None:
    theirs = {"RANK": 5, "SIZE": 8, "LOCAL_RANK": 1, "LOCAL_SIZE": 4}
    given = {f"OMPI_COMM_WORLD_{name}": str(value) for name, value in theirs.items()}
    with mock.patch.dict(os.environ, given, clear=True):
        mpi_environment.adopt_mpirun()
        added = {name: value for name, value in os.environ.items() if name not in given}
    assert added == {
        "RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "GROUP_RANK": "1",
        "OMP_NUM_THREADS": "1",
    }  # fmt: skip


def test_what_torchrun_has_said_stays() -> None:
    given = {f"OMPI_COMM_WORLD_{name}": "0" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")}
    with mock.patch.dict(os.environ, {**given, "RANK": "3"}, clear=True):
        mpi_environment.adopt_mpirun()
        assert os.environ["RANK"] == "3"
        assert "WORLD_SIZE" not in os.environ


def test_a_missing_library_is_one_message_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(InputError, match=r"backend=mpi: MPI cannot be used here: .*ddpsim\[mpi\]"):
        mpi_world.mpi()


def test_without_the_name_server_torchrun_s_ranks_are_told_to_use_mpirun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(InputError, match=r"`ompi-server`, which is not here; start the ranks by `mpirun -np N`"):
        mpi_world.communicator_of(torch.distributed.HashStore(), 0, 2, [])


@pytest.mark.parametrize("tensor", [torch.ones(1, dtype=torch.complex32), torch.eye(2).to_sparse()])
def test_what_mpi_cannot_send_is_refused(tensor: torch.Tensor) -> None:
    with pytest.raises(InputError, match="MPI"):
        check_tensor(tensor)


@pytest.fixture
def abandoned() -> Iterator[mock.Mock]:
    """What is called where MPI is given up; this process goes on."""
    with mock.patch("ddpexec.groups.mpi_work.abandon") as called:
        yield called


@contextmanager
def calling(timeout_s: float) -> Iterator[tuple[MpiCalls, threading.Event]]:
    """Yield what carries calls out, and what a call may wait for until the end."""
    calls, held = MpiCalls(timedelta(seconds=timeout_s)), threading.Event()
    try:
        yield calls, held
    finally:
        held.set()
        calls.close()


def test_a_call_that_does_not_return_fails_it_and_those_behind_it(abandoned: mock.Mock) -> None:
    with calling(0.3) as (calls, held):
        first = calls.carry_out("allreduce", lambda: held.wait(20) and None, [])
        second = calls.carry_out("broadcast", lambda: None, [])
        for work in (first, second):
            with pytest.raises(MpiError, match=r"MPI: allreduce timed out after 0\.3 s"):
                work.wait()
        with pytest.raises(MpiError, match="allreduce timed out"):
            calls.carry_out("barrier", lambda: None, [])
        abandoned.assert_called_once_with()


def test_calls_are_carried_out_in_order_and_an_abort_wakes_who_waits(abandoned: mock.Mock) -> None:
    order = list[int]()
    with calling(60) as (calls, held):
        for number in range(3):
            calls.carry_out("allreduce", lambda number=number: order.append(number), [])
        calls.carry_out("barrier", lambda: None, []).wait()
        assert order == [0, 1, 2]
        work = calls.carry_out("allreduce", lambda: held.wait(20) and None, [])
        threading.Timer(0.1, calls.abort).start()
        with pytest.raises(MpiError, match="given up"):
            work.wait()
        abandoned.assert_called_once_with()


def test_what_follows_a_call_may_make_another_and_wait_for_it() -> None:
    def follow(depth: int) -> None:
        if depth:
            calls.carry_out("allreduce", lambda: None, depth).get_future().then(lambda _: follow(depth - 1)).wait()

    with calling(20) as (calls, _):
        follow(3)


def test_a_message_ends_when_its_request_has_and_a_failed_one_by_its_error() -> None:
    class Request:
        def __init__(self, answers: list[object]) -> None:
            self.answers = answers

        def Test(self) -> object:  # noqa: N802
            answer = self.answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

    with calling(60) as (calls, _):
        sent = calls.begin("send to 1", lambda: Request([False, False, True]), ["sent"])
        lost = calls.begin("receive from 1", lambda: Request([False, RuntimeError("MPI_ERR_OTHER")]), [])
        assert sent.wait()
        assert sent.result() == ["sent"]
        with pytest.raises(MpiError, match=r"MPI: receive from 1 failed: MPI_ERR_OTHER"):
            lost.wait()
