"""A command of ddpexec, once a rank on a lab network, as a user would type it; a signal ends its lab with it."""

from __future__ import annotations

import functools
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from ddpexec.groups.torchrun import module_environment
from ddpsim.common.errors import InputError
from ddpsim.common.parent import die_with_parent

TIMEOUT_S = 1800.0
"""Seconds a command of a campaign may take before it is ended; chosen by hand, several times the longest one."""
GRACE_S = 30.0
"""How long a lab that is asked to end may take: its ranks have twice `launch.GRACE_S`, then namespaces are removed."""


def run_in_lab(topology: Path, command: Sequence[str]) -> None:
    """Run a command of ddpexec once a rank on the network of `topology`.

    The lab has a process group of its own: what a terminal sends to the campaign's group reaches the lab only as the
    request to end that it gets here, whatever exception passes through.

    Raises:
        InputError: where it fails; the last lines it wrote are in the message.
    """
    lab = ["netlab", "--topology", str(topology), "--", sys.executable, "-m", "ddpexec", *command]
    process = subprocess.Popen(
        [sys.executable, "-m", "ddpexec", *lab],
        env=module_environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=functools.partial(die_with_parent, signal.SIGTERM),
    )
    try:
        _, said = process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise InputError(f"`{' '.join(command)}` took more than {TIMEOUT_S:.0f} s", place="campaign") from None
    finally:
        _end(process)
    if process.returncode != 0:
        last = " / ".join(said.strip().splitlines()[-3:])
        raise InputError(f"`{' '.join(command)}` ended with exit code {process.returncode}: {last}", place="campaign")


def _end(process: subprocess.Popen[str]) -> None:
    """Ask a lab that still stands to end, and wait until it is gone."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.communicate(timeout=GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
