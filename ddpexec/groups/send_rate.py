"""A limit on what this process sends on each of its TCP connections, for gloo between ranks of one machine.

Loopback is so quick that the cap of a bucket changes little there. Linux paces a TCP connection where its socket asks
for that (`SO_MAX_PACING_RATE`, socket(7)): the kernel's timers let segments go, no thread of ours and no privilege is
needed, and what a rank computes is not disturbed. What arrives is slower than the rate, by headers and timers; how much
is measured, by `microbench` under the same limit, never assumed.
"""

from __future__ import annotations

import os
import socket
import stat
import sys
from contextlib import suppress

from ddpexec.errors import OptionError

SO_MAX_PACING_RATE = 47
"""Of Linux' `include/uapi/asm-generic/socket.h`; Python's `socket` does not name it."""


def limit_send_rate(bytes_per_s: float, backend: str) -> None:
    """Let each TCP connection that this process has now send at most so many bytes a second.

    Connections that are made later are not limited: call it when all process groups exist.

    Raises:
        OptionError: another backend than gloo, or a system that does not pace connections.
    """
    if backend != "gloo":
        remedy = "use `backend=gloo`, or a lab's network"
        raise OptionError(f"connections of {backend} cannot be paced", place="send_rate", remedy=remedy)
    rate = max(1, round(bytes_per_s))
    try:
        for number in map(int, os.listdir("/proc/self/fd")):
            with suppress(OSError):  # closed since it was listed, or no connection
                if stat.S_ISSOCK(os.fstat(number).st_mode):
                    _limit(number, rate)
    except FileNotFoundError:
        raise OptionError(f"{sys.platform} does not pace connections", place="send_rate", remedy="use Linux") from None


def _limit(number: int, rate: int) -> None:
    with socket.socket(fileno=os.dup(number)) as connection:
        if connection.type == socket.SOCK_STREAM and connection.family in (socket.AF_INET, socket.AF_INET6):
            connection.getpeername()
            # An unsigned long; a kernel of before 2018 takes its low 32 bits, 4 GB/s at most.
            connection.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, rate.to_bytes(8, sys.byteorder))
