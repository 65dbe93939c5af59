"""Stop or kill a rank of a real run, with or without torchrun: when do the others end, and what is said?

`python -m tests.ddpexec.lost_ranks RANKS ...` starts so many ranks of a command without torchrun.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ddpsim.workload.files import save_workload
from tests.ddpexec.small import small_workload

TIMEOUT_S = 5.0
BEGIN_S, LATEST_S = 120.0, 40.0
"""How long to wait for training to begin, and for the survivors to end."""
UNDER_WAY = "iteration 20 of"
"""What a run says when it is past all that precedes training."""
_ENDLESS = "100000"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One rank of `world_size` is sent a signal while it trains."""

    world_size: int
    lost: int
    signal: signal.Signals
    torchrun: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a trial.

    Attributes:
        ended_s: seconds from the signal to the end of each survivor, by rank; None: it was still there at the end.
        errors: the lines of standard error that begin with `error:`.
        text: all of standard error.
    """

    ended_s: Mapping[int, float | None]
    errors: Sequence[str]
    text: str


def attempt(trial: Trial) -> Outcome:
    """Run `trial`."""
    with tempfile.TemporaryDirectory() as folder, _running(trial, Path(folder)) as process:
        log = Path(folder) / "stderr"
        _wait_for_training(log)
        pids = _ranks_of(process.pid)
        begin = time.monotonic()
        os.kill(pids.pop(trial.lost), trial.signal)
        ended: dict[int, float | None] = dict.fromkeys(sorted(pids))
        while None in ended.values() and time.monotonic() - begin < LATEST_S:
            for rank in [rank for rank, seconds in ended.items() if seconds is None and _is_gone(pids[rank])]:
                ended[rank] = time.monotonic() - begin
            time.sleep(0.02)
        if trial.torchrun:  # it may still be telling of it
            with suppress(subprocess.TimeoutExpired):
                process.wait(LATEST_S)
        time.sleep(0.2)
        text = log.read_text()
    return Outcome(ended, re.findall(r"^error: .*", text, re.MULTILINE), text)


@contextmanager
def _running(trial: Trial, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start the ranks of `trial` below one process, of a session of its own, and kill them all in the end."""
    save_workload(small_workload(), folder / "w.json")
    run = ["-m", "ddpexec", "run", "--workload", str(folder / "w.json"), "--out", str(folder / "out")]
    run += ["--iterations", _ENDLESS, "--timeout", f"{TIMEOUT_S:g}s", "--no-stamps"]
    if trial.torchrun:
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(trial.world_size)]
        command = [sys.executable, *launcher, *run]
    else:
        command = [sys.executable, "-m", "tests.ddpexec.lost_ranks", str(trial.world_size), *run]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    with open(folder / "stderr", "wb") as errors, open(os.devnull, "wb") as nowhere:
        process = subprocess.Popen(command, env=environment, stdout=nowhere, stderr=errors, start_new_session=True)
    pids = set[int]()
    try:
        yield process
    finally:
        pids |= {process.pid, *_children(process.pid)}
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def start_ranks(count: int, arguments: Sequence[str]) -> None:
    """Start `count` ranks of a command with torchrun's variables, rank 0 keeping the store, and wait for none."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    variables = {"WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    for rank in range(count):
        own = {name: str(value) for name, value in {**variables, "RANK": rank, "LOCAL_RANK": rank}.items()}
        subprocess.Popen([sys.executable, *arguments], env={**os.environ, **own})
    signal.pause()


def _ranks_of(launcher: int) -> dict[int, int]:
    """Return the processes of the ranks below `launcher`, by rank."""
    found = {}
    for pid in _children(launcher):
        variables = dict(
            entry.partition("=")[::2] for entry in Path(f"/proc/{pid}/environ").read_text().split("\0") if "=" in entry
        )
        if "RANK" in variables:
            found[int(variables["RANK"])] = pid
    return found


def _children(pid: int) -> list[int]:
    with suppress(FileNotFoundError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def _is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def _wait_for_training(log: Path) -> None:
    until = time.monotonic() + BEGIN_S
    while UNDER_WAY not in (text := log.read_text()):
        if "error:" in text or time.monotonic() > until:
            raise TimeoutError(f"training did not begin: {text}")
        time.sleep(0.05)


if __name__ == "__main__":
    start_ranks(int(sys.argv[1]), sys.argv[2:])
