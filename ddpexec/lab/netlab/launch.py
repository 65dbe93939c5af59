"""Run a command once a rank in a lab, with torchrun's environment, and end all ranks whatever happens."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence

from ddpexec.groups.torchrun import RANKS_HERE
from ddpexec.lab.netlab.lab import Lab
from ddpexec.lab.netlab.network import LabNetwork
from ddpsim.common.parent import die_with_parent

MASTER_PORT = 29500
"""The port of the ranks' store, torchrun's default; a lab is a network of its own."""
GRACE_S = 5.0
"""How long ranks may take to end by themselves after one has failed, and again after they are asked to."""
POLL_S = 0.02
"""Between two looks at whether ranks have ended; chosen by hand."""


def run(lab: Lab, command: Sequence[str], environment: Mapping[str, str] | None = None) -> int:
    """Run `command` on every rank of `lab` and return the exit code: that of the first rank to fail, else 0.

    A rank that fails ends the others: they have `GRACE_S` seconds to report their own errors first.
    """
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for host, each in enumerate(lab.network.hosts):
            for local, rank in enumerate(each.ranks):
                variables = {**os.environ, **rank_environment(lab.network, rank, local, host), **(environment or {})}
                processes.append(_start(lab.enter(host, list(command)), variables))
        return _wait(processes)
    finally:
        end(processes)


def rank_environment(network: LabNetwork, rank: int, local_rank: int, host: int) -> dict[str, str]:
    """Return what torchrun would set for `rank`, and the interface that gloo and NCCL must use."""
    threads = {} if "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": "1"}
    return {
        **threads,
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(network.world_size),
        "LOCAL_WORLD_SIZE": str(len(network.hosts[host].ranks)),
        "GROUP_RANK": str(host),
        RANKS_HERE: str(network.world_size),
        "MASTER_ADDR": network.address(0),
        "MASTER_PORT": str(MASTER_PORT),
        "GLOO_SOCKET_IFNAME": "eth0",
        "NCCL_SOCKET_IFNAME": "eth0",
    }


def end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Ask the processes that still run to end, then kill their groups; strays die with their namespace."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        running = [process for process in processes if process.poll() is None]
        deadline_s = time.monotonic() + GRACE_S
        for process in running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
        for process in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline_s - time.monotonic()))


def _start(command: list[str], variables: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, env=variables, start_new_session=True, preexec_fn=die_with_parent)


def _wait(processes: Sequence[subprocess.Popen[bytes]]) -> int:
    first, deadline_s = 0, None
    while True:
        codes = [process.poll() for process in processes]
        failed = [code for code in codes if code]
        if None not in codes:
            return first or (failed[0] if failed else 0)
        if failed and deadline_s is None:
            first, deadline_s = failed[0], time.monotonic() + GRACE_S
        if deadline_s is not None and time.monotonic() > deadline_s:
            return first
        time.sleep(POLL_S)
