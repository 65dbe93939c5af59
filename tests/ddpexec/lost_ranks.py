"""Stop or kill rank 0 of a real run of two ranks, with or without torchrun: does the other end, and what is said?

`python -m tests.ddpexec.lost_ranks RANKS ...` starts so many ranks of a command without torchrun.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from ddpsim.workload.files import save_workload
from tests.ddpexec.lab.netlab.processes import children
from tests.ddpexec.small import small_workload

TIMEOUT_S = 5.0
BEGIN_S, LATEST_S = 120.0, 40.0
"""How long to wait for training to begin, and for the survivor to end."""
UNDER_WAY = "iteration 20 of"
"""What a run says when it is past all that precedes training."""
_ENDLESS = "100000"


def lose_rank_zero(number: signal.Signals, *, torchrun: bool) -> tuple[bool, str]:
    """Send rank 0 a signal while it trains; return whether rank 1 has ended, and all of standard error."""
    with tempfile.TemporaryDirectory() as folder, _running(Path(folder), torchrun) as process:
        log = Path(folder) / "stderr"
        _wait_for_training(log)
        pids = _ranks_of(process.pid)
        os.kill(pids[0], number)
        until = time.monotonic() + LATEST_S
        while not (ended := _is_gone(pids[1])) and time.monotonic() < until:
            time.sleep(0.02)
        if torchrun:  # it may still be telling of it
            with suppress(subprocess.TimeoutExpired):
                process.wait(LATEST_S)
        time.sleep(0.2)
        return ended, log.read_text()


@contextmanager
def _running(folder: Path, torchrun: bool) -> Iterator[subprocess.Popen[bytes]]:
    """Start two ranks below one process, of a session of its own, and kill them all in the end."""
    save_workload(small_workload(), folder / "w.json")
    run = ["-m", "ddpexec", "run", "--workload", str(folder / "w.json"), "--out", str(folder / "out")]
    run += ["--iterations", _ENDLESS, "--timeout", f"{TIMEOUT_S:g}s", "--no-stamps"]
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node"] if torchrun else [__name__]
    command = [sys.executable, "-m", *launcher, "2", *run]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    with open(folder / "stderr", "wb") as errors, open(os.devnull, "wb") as nowhere:
        process = subprocess.Popen(command, env=environment, stdout=nowhere, stderr=errors, start_new_session=True)
    try:
        yield process
    finally:
        for pid in (process.pid, *children(process.pid)):
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
    for pid in children(launcher):
        variables = dict(
            entry.partition("=")[::2] for entry in Path(f"/proc/{pid}/environ").read_text().split("\0") if "=" in entry
        )
        if "RANK" in variables:
            found[int(variables["RANK"])] = pid
    return found


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
