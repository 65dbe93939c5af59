"""Cases: made from seed, target and number; run within bounds; judged."""

from __future__ import annotations

import resource
import shutil
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

from ddpsim.common.errors import InputError

MOST_S, MOST_BYTES, LONGEST = 5.0, 2 << 30, 1000
"""Bounds of a case: seconds of processor time, memory, characters of a message or of a line that lists a problem."""


class TooLongError(BaseException):
    """A case took longer than `MOST_S`; no handler of errors may take it for one of its own."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A case that failed.

    Attributes:
        case: `target number`.
        kind: error and place in the code, equal for cases that fail alike.
        detail: the traceback, or the message that is too long.
    """

    case: str
    kind: str
    detail: str


def random_of(seed: int, target: str, number: int) -> Random:
    """Return the generator of one case."""
    return Random(f"{seed} {target} {number}")


def judged(case: str, action: Callable[[], object]) -> Failure | None:
    """Run `action` and return how it failed; None where it succeeded, or refused its input as it should."""
    try:
        message = _message(action)
    except TooLongError as error:
        return Failure(case, f"too long at {_where(error)}", _shown(error))
    except Exception as error:
        return Failure(case, f"{type(error).__name__} at {_where(error)}", _shown(error))
    if (most := longest(message)) > LONGEST:
        return Failure(case, f"message too long of {case.split()[0]}", f"{most} characters: {message[:300]}")
    return None


def longest(message: str) -> int:
    """Return the characters of a message, or of the longest line of one that lists problems of a file."""
    return max(map(len, message.split("\n  ")))


def _message(action: Callable[[], object]) -> str:
    try:
        action()
    except InputError as error:
        message = str(error)
        message.encode("utf-8")
        return message
    return ""


def _shown(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)[-5:]
    lines = [f"  {frame.filename}:{frame.lineno} {frame.line}" for frame in frames]
    return "\n".join([*lines, f"  {type(error).__name__}: {str(error)[:300]}"])


def _where(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "/ddpsim/" in frame.filename or "/ddpexec/" in frame.filename]
    frame = (own or frames)[-1]
    return f"{Path(frame.filename).parent.name}/{Path(frame.filename).name}:{frame.lineno}"


@contextmanager
def bounded_memory() -> Iterator[None]:
    """Bound this process's address space to `MOST_BYTES` beyond what it has; a case beyond raises `MemoryError`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    bound = pages * resource.getpagesize() + MOST_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (bound if hard == resource.RLIM_INFINITY else min(bound, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@contextmanager
def bounded_time(seconds: float) -> Iterator[None]:
    """Raise `TooLongError` in this, the main thread once the process has computed for `seconds`."""

    def expire(*_: object) -> None:
        raise TooLongError

    before = signal.signal(signal.SIGPROF, expire)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def emptied(folder: Path) -> Path:
    """Return `folder` without what a case before left in it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


class Progress:
    """Says every so often on a line how far a long run is."""

    def __init__(self, total: int) -> None:
        self._total, self._begin_s, self._next_s = total, time.monotonic(), 30.0

    def at(self, done: int, failures: int) -> str | None:
        """Return a line to print now, where it is time for one."""
        passed_s = time.monotonic() - self._begin_s
        if passed_s < self._next_s:
            return None
        self._next_s = passed_s + 30
        return f"{done} of {self._total}, {failures} failed, {passed_s:.0f} s"
