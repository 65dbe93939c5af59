"""Find which rank is gone when a collective fails: backends name an address at best."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NoReturn, Protocol

import torch.distributed as dist

from ddpexec.errors import ExecutionError, LostRankError
from ddpexec.groups.notes import Notes, Places, find_ended_ranks, find_stopped_ranks
from ddpexec.groups.termination import ignore_from_now_on

PATIENCE_S = 0.5
"""How long to look for an ended process: its connections close shortly before it has ended."""
ANSWER_S = 1.5
"""How long ranks that time out wait for each other to say so; they do so at nearly the same moment."""
_CONFIRM_S = 0.5
"""How long to wait for the note of a process that has ended: it may have failed as this one did."""

_SIGNS = re.compile(r"gloo|NCCL|nccl|^MPI: |[Cc]onnection|[Tt]imed out|[Tt]imeout|recvValue|\bpeer\b|[Ss]ocket")
"""What backends say when others do not answer, and not when they are asked for what they cannot do."""
_STAMP = re.compile(r"\bgloo/\S+:\d+\]|ProcessGroup(Gloo|NCCL)|NCCL error|^MPI: ")
"""What nobody but a backend says."""
_ORNAMENT = re.compile(
    r"^\[\S+:\d+\] |\. This is typically caused by .*"
    r"|^Got the following error when running the callback: \w+: | At: /.*"
)
"""Source lines and advice in gloo's messages, and what torch puts around those of a group written in Python."""


class Members(Protocol):
    """The part of a `Communicator` that the search for lost ranks needs."""

    @property
    def main(self) -> dist.ProcessGroup:
        """The group whose store carries the notes of ranks that fail."""

    @property
    def rank(self) -> int:
        """This rank."""

    @property
    def world_size(self) -> int:
        """How many ranks there are."""

    @property
    def places(self) -> Places:
        """Machine and process of each rank, as far as they are known."""


@contextmanager
def name_lost_ranks(communicator: Members, what: str, *, others_code: bool = False) -> Iterator[None]:
    """Turn a failure of `what` into a `LostRankError` that names this rank and those that have ended.

    Args:
        communicator: whose ranks may be gone.
        what: a collective; nothing else belongs within, for its errors would be taken for a backend's.
        others_code: it is code of others that makes collectives, such as a hook: only what a backend signs counts.
    """
    try:
        yield
    except RuntimeError as error:
        raise_lost(communicator, what, error, others_code=others_code)


def raise_lost(communicator: Members, what: str, error: RuntimeError, *, others_code: bool = False) -> NoReturn:
    """Raise what `name_lost_ranks` makes of `error`."""
    signs = _STAMP if others_code else _SIGNS
    known = isinstance(error, dist.DistError) or signs.search(str(error))
    if isinstance(error, ExecutionError) or not known:
        raise error
    raise make_lost_error(communicator, what, error) from error


def make_lost_error(communicator: Members, what: str, error: Exception) -> LostRankError:
    """Return the error for a collective that failed with `error`; takes at most about three seconds."""
    # torchrun ends this rank as soon as another has failed; the search below would be cut off in the middle.
    ignore_from_now_on()
    late = "imed out" in str(error) or "imeout" in str(error)
    notes = Notes(communicator.main, late)
    lost = _search(notes, communicator.places, communicator.rank)
    reason = _ORNAMENT.sub("", " ".join(str(error).split()))[:300]
    failed = f"rank {communicator.rank}: {what} failed, as"
    others = [rank for rank in range(communicator.world_size) if rank != communicator.rank]
    if lost is not None:
        return lost.error(failed, reason)
    silent = [rank for rank in others if rank not in notes.failed] if notes.late and notes.reached else []
    if silent:
        return LostRankError(
            f"{failed} {_ranks(silent)} did not come within the process group's timeout: {reason}",
            remedy="see what it was doing; give a longer timeout where it only needs more time",
            speaker=_speaker(notes, communicator.rank, silent),
        )
    store = "" if notes.reached else ", and the store does not answer"
    keeper = "" if notes.reached else ", first that of rank 0, which keeps the store unless torchrun does"
    named = ", ".join(map(str, others))
    return LostRankError(
        f"{failed} one of the other ranks ({named}) died, raised or did not come within the timeout{store}: {reason}",
        remedy=f"see their output{keeper}",
    )


def termination_error(communicator: Members) -> LostRankError | None:
    """Return the error of a rank that was sent SIGTERM because others have ended; None where none has."""
    lost = _search(Notes(communicator.main, None), communicator.places, communicator.rank)
    return None if lost is None else lost.error(f"rank {communicator.rank}: SIGTERM came, as", "")


@dataclass(frozen=True, slots=True)
class _LostRanks:
    """Ranks that are known to be gone, and how it is known."""

    ranks: Sequence[int]
    how: str
    remedy: str | None
    speaker: int

    def error(self, failed: str, reason: str) -> LostRankError:
        text = f"{failed} {self.how}" + (f": {reason}" if reason and self.remedy is not None else "")
        return LostRankError(text, remedy=self.remedy, speaker=self.speaker)


def _search(notes: Notes, known: Places, own: int) -> _LostRanks | None:
    """Return who is gone as soon as anybody knows."""
    begin = time.monotonic()
    try:
        while True:
            places = {**notes.places, **known}
            # A process that ended may have failed for the same reason as this one, a third rank that is gone: its note
            # is read before it is blamed.
            if gone := set(find_ended_ranks(places)) - notes.failed:
                notes.renew(_CONFIRM_S)
            if words := {rank: text for rank, text in notes.words.items() if rank not in notes.failed}:
                how = "; ".join(f"rank {rank} gave up: {text}" for rank, text in sorted(words.items()))
                # Rank 0 has told of what it raised itself.
                speaker = 0 if 0 in _members(notes, words) else _speaker(notes, own, words)
                return _LostRanks(sorted(words), how, None, speaker)
            if gone := gone - notes.failed:
                how = f"{_ranks(gone, places)} {'has' if len(gone) == 1 else 'have'} ended"
                remedy = "see why it died or raised in its output"
                return _LostRanks(sorted(gone), how, remedy, _speaker(notes, own, gone))
            # Stopped processes last: a rank that has ended or given up is the likelier cause.
            if stopped := find_stopped_ranks(places):
                how = f"{_ranks(stopped, places)} {'is' if len(stopped) == 1 else 'are'} stopped"
                remedy = "let it continue (SIGCONT), or see who stopped it"
                return _LostRanks(stopped, how, remedy, _speaker(notes, own, stopped))
            if time.monotonic() > begin + (ANSWER_S if notes.late else PATIENCE_S):
                return None
            time.sleep(0.02)
    finally:
        notes.close()


def _speaker(notes: Notes, own: int, gone: Collection[int]) -> int:
    """Return the first remaining rank, as a rank of the default group: it prints the error for all."""
    size = max(own, *gone, len(notes.members) - 1) + 1
    return min(_members(notes, [rank for rank in range(size) if rank not in gone]))


def _members(notes: Notes, ranks: Collection[int]) -> list[int]:
    return [notes.members[rank] if notes.members else rank for rank in ranks]


def _ranks(ranks: Collection[int], places: Places | None = None) -> str:
    processes = {rank: f" (process {process})" for rank, (_, process) in (places or {}).items()}
    return ", ".join(f"rank {rank}{processes.get(rank, '')}" for rank in sorted(ranks))
