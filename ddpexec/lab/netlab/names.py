"""Names and locks: which namespaces belong to a lab, and which labs have died and left theirs behind."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

from ddpsim.common.stopping import ignore_signals

PREFIX = "ddplab"
LOCKS = Path("/run/ddpexec-netlab")


@contextlib.contextmanager
def claim_name() -> Iterator[str]:
    """Yield a lab's name, held by a lock that dies with this process; remove the leftovers of dead labs first."""
    name = f"{PREFIX}-{os.getpid()}"
    path = LOCKS / f"{name}.lock"
    with contextlib.ExitStack() as stack:
        with _hold_lock():
            _remove_dead()
            lock = stack.enter_context(path.open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        try:
            yield name
        finally:
            with ignore_signals():
                remove_namespaces(name)
                path.unlink(missing_ok=True)


def remove_leftovers() -> list[str]:
    """Remove the namespaces of labs whose process is gone, with all that still runs in them; return the labs' names.

    Only namespaces that carry this project's prefix and whose lock nobody holds are touched.
    """
    with _hold_lock():
        return _remove_dead()


def remove_namespaces(name: str) -> None:
    """Kill what runs in the namespaces of lab `name` and delete them; the devices in them go with them."""
    for namespace in namespaces():
        if namespace.startswith(f"{name}-"):
            pids = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True, check=False)
            for pid in pids.stdout.split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            subprocess.run(["ip", "netns", "delete", namespace], capture_output=True, check=False)


def namespaces() -> list[str]:
    """Return the names of all network namespaces of this machine."""
    result = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False)
    return [line.split()[0] for line in result.stdout.splitlines() if line.strip()]


@contextlib.contextmanager
def _hold_lock() -> Iterator[None]:
    """Hold the lock under which labs are claimed and dead ones removed.

    A lab that has opened its own lock and not taken it yet would else look dead to another.
    """
    LOCKS.mkdir(parents=True, exist_ok=True)
    with (LOCKS / "claiming.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _remove_dead() -> list[str]:
    owners = {m[1] for n in namespaces() if (m := re.fullmatch(rf"({PREFIX}-\d+)-\w+", n))}
    owners |= {path.stem for path in LOCKS.glob(f"{PREFIX}-*.lock")}
    dead = [name for name in sorted(owners) if not _is_alive(name)]
    for name in dead:
        remove_namespaces(name)
        (LOCKS / f"{name}.lock").unlink(missing_ok=True)
    return dead


def _is_alive(name: str) -> bool:
    try:
        with (LOCKS / f"{name}.lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
