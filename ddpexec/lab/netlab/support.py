"""What a lab network needs of the machine, and whether it is here."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

TUN_DEVICE = Path("/dev/net/tun")


def list_missing() -> list[str]:
    """Return what this machine lacks for a lab network, each with its remedy; empty where nothing is missing."""
    if sys.platform != "linux":
        return [f"Linux (this is {sys.platform})"]
    lacking = []
    if os.geteuid() != 0:
        lacking.append("root (run it with sudo, or in a container with CAP_NET_ADMIN and CAP_SYS_ADMIN)")
    lacking += [f"`{tool}` (install iproute2)" for tool in ("ip", "tc") if shutil.which(tool) is None]
    if not lacking and (refusal := _try_namespace()):
        lacking.append(f"permission to make network namespaces ({refusal})")
    return lacking


@functools.cache
def has_netem() -> bool:
    """Return whether the kernel delays packets by itself."""
    probe = ["unshare", "--net", "tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


def has_tun() -> bool:
    """Return whether TUN devices can be opened, which the user-space forwarder needs."""
    return os.access(TUN_DEVICE, os.R_OK | os.W_OK)


@functools.cache
def _try_namespace() -> str:
    result = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True, check=False)
    return "" if result.returncode == 0 else result.stderr.strip() or f"exit {result.returncode}"
