"""One command as a process with a time limit; what it started ends with it, in whichever session."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

GRACE_S = 10.0
"""How long what is asked to end may take: torchrun ends its ranks first."""
POLL_S = 0.1

Process = tuple[int, str]
"""A process's number, and when it started, since numbers come again."""


def carry_out(
    command: Sequence[str],
    environment: Mapping[str, str],
    place: Path,
    folder: Path,
    limit_s: float,
    waiting: Callable[[float], None] = lambda seconds: None,
) -> int | None:
    """Run `command` with its output in `folder`; return its exit code, None where it was still running at the limit.

    Args:
        command, environment, place: what to run, with which variables beside this process's, and in which folder.
        folder: gets `stdout.txt` and `stderr.txt`.
        limit_s: after which it is ended.
        waiting: called now and then with the seconds so far.
    """
    with open(folder / "stdout.txt", "wb") as out, open(folder / "stderr.txt", "wb") as err:
        begin_s = time.monotonic()
        process = subprocess.Popen(
            command, stdout=out, stderr=err, stdin=subprocess.DEVNULL, env={**os.environ, **environment},
            cwd=place, start_new_session=True,
        )  # fmt: skip
        try:
            while process.poll() is None and time.monotonic() - begin_s < limit_s:
                waiting(time.monotonic() - begin_s)
                time.sleep(POLL_S)
            return process.poll()
        finally:
            end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask a process to end, give it some time, and kill what is left of it and of all it started."""
    if process.poll() is not None:
        return
    family = descendants(process.pid)
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(GRACE_S)
    family |= descendants(process.pid)
    for number, started in family:
        if _started(number) == started:
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
    if process.poll() is None:
        process.kill()
    process.wait()


def descendants(number: int) -> set[Process]:
    """Return the processes that come from the one of this `number`; none where there is no /proc."""
    parents = {int(path.name): _field(path, 1) for path in Path("/proc").glob("[0-9]*")}
    found: set[Process] = set()
    generation = {number}
    while generation:
        generation = {child for child, parent in parents.items() if parent.isdigit() and int(parent) in generation}
        found |= {(child, _started(child)) for child in generation}
    return found


def _started(number: int) -> str:
    return _field(Path("/proc") / str(number), 19)


def _field(process: Path, place: int) -> str:
    """Return a field of /proc/N/stat, counted after the name; empty where the process is gone."""
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()[place]
    except (OSError, IndexError):
        return ""
