"""What a rank can find out about the others when a collective has failed, however much of the job still answers."""

from __future__ import annotations

import signal
import threading
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from ddpexec.errors import LostRankError
from ddpexec.groups.lost import name_lost_ranks
from ddpexec.groups.notes import Notes
from ddpexec.groups.process_groups import Communicator, wait
from tests.ddpexec import lost_ranks
from tests.ddpexec.groups import ranks

TIMED_OUT = "[/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 5000ms for recv operation"


def failed_too(rank: int, group: str) -> set[int]:
    """Return which of two ranks have noted that they failed, as `rank` reads it when a collective of `group` has."""
    with mock.patch("ddpexec.groups.notes.dist.get_process_group_ranks", return_value=[0, 1]):
        notes = Notes(mock.Mock(group_name=group, rank=lambda: rank), late=True)
        notes.renew(5)
        notes.close()
    assert notes.reached
    return notes.failed


@pytest.mark.usefixtures("one_rank")
def test_a_note_counts_for_its_own_group() -> None:
    assert failed_too(1, "first") == set()
    assert failed_too(0, "first") == {1}
    assert failed_too(0, "second") == set()


@pytest.mark.parametrize(
    "text",
    [
        "DataLoader timed out after 5 seconds",
        "Expected all tensors to be on the same device, a peer's is not",
        "a collective of mine has Connection trouble",
    ],
)
def test_an_error_of_the_user_s_is_no_lost_rank(text: str) -> None:
    guarded = name_lost_ranks(mock.Mock(), "a hook's reduction", others_code=True)
    with pytest.raises(RuntimeError, match=text) as caught, guarded:
        raise RuntimeError(text)
    assert not isinstance(caught.value, LostRankError)


def test_a_collective_that_cannot_be_done_is_no_lost_rank() -> None:
    work = mock.Mock()
    work.wait.side_effect = RuntimeError("Invalid scalar type")
    with pytest.raises(RuntimeError, match=r"^Invalid scalar type$"):
        wait(work, mock.Mock(), "an allreduce")


@ranks.on(1)
def test_a_loader_that_times_out_in_training_is_no_lost_rank(rank: int) -> None:
    from ddpexec.running.run import Run
    from ddpexec.running.settings import RunSettings
    from tests.ddpexec.small import small_workload

    run = Run(RunSettings(iterations=1), torch.device("cpu"), workload=small_workload())
    said = "DataLoader timed out after 5 seconds"
    with (
        mock.patch.object(run, "ddp", side_effect=RuntimeError(said)),
        pytest.raises(RuntimeError, match=said) as error,
    ):
        run.train()
    assert type(error.value) is RuntimeError


def beside_a_dead_store(rank: int) -> str:
    """Lose a rank while the store answers nobody."""

    def never(*_: object) -> None:
        threading.Event().wait()

    communicator = Communicator([dist.group.WORLD])
    communicator.world_size = 2
    store = mock.Mock(set=never, check=never, clone=mock.Mock(side_effect=RuntimeError("no")))
    with mock.patch("torch.distributed.distributed_c10d._get_default_store", return_value=store):
        try:
            with name_lost_ranks(communicator, "an allreduce"):
                raise RuntimeError(TIMED_OUT)
        except LostRankError as error:
            return str(error)
    return "nothing"


def test_a_store_that_hangs_holds_nobody_up() -> None:
    (said,) = ranks.run_own(1, beside_a_dead_store, timeout_s=30)
    assert "one of the other ranks (1) died, raised or did not come within the timeout, and the store does not" in said


def spoken(**known: Any) -> int | None:
    """Return who of three ranks tells that rank 0 or 1 is gone, as rank 2 sees it."""
    from ddpexec.groups import lost

    notes = mock.Mock(failed=set(), places={}, words={}, late=False, reached=1, members=[0, 1, 2], **known)
    ended = known.get("ended", [])
    with (
        mock.patch.object(lost, "Notes", return_value=notes),
        mock.patch.object(lost, "find_ended_ranks", return_value=ended),
    ):
        return lost.make_lost_error(
            mock.Mock(rank=2, world_size=3, places={}), "an allreduce", RuntimeError("closed")
        ).speaker


def test_one_rank_tells_of_a_lost_one() -> None:
    assert spoken(ended=[1]) == 0
    assert spoken(ended=[0]) == 1
    assert spoken() is None  # nobody knows who is left


@pytest.mark.needs("wait")
@pytest.mark.parametrize(("number", "torchrun"), [(signal.SIGSTOP, False), (signal.SIGKILL, True)])
def test_survivors_of_a_rank_0_that_is_stopped_or_killed_end_and_one_says_why(
    number: signal.Signals, torchrun: bool
) -> None:
    ended, text = lost_ranks.lose_rank_zero(number, torchrun=torchrun)
    assert ended, text
    assert text.count("Traceback (most recent call last)") == text.count("ChildFailedError: ")
    (said,) = (line for line in text.splitlines() if line.startswith("error: "))
    assert said.startswith("error: rank 1: ")
    assert "rank 0 (process " in said
