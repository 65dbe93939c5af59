"""Whether networks of namespaces can be made here, and whether timed layers keep their time."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

from ddpexec.groups.threads import in_thread
from ddpexec.lab.netlab import support
from ddpsim.common.finding import NO, UNKNOWN, YES, Finding, format_able


def findings() -> Iterator[Finding]:
    """Yield what was found."""
    missing = support.list_missing()
    lab = "python -m ddpexec netlab --ranks 2 --rate 100mbit -- true"
    if missing:
        yield Finding("lab", NO, f"it lacks {'; '.join(missing)}", lab)
    else:
        yield Finding("lab", YES, "emulated networks can be made of network namespaces", lab)
        yield _delays()
    yield _priority()


def _delays() -> Finding:
    proof = "unshare --net tc qdisc add dev lo root netem delay 1ms; ls -l /dev/net/tun"
    if support.has_netem():
        return Finding("lab's delays", YES, "by the kernel's netem", proof)
    tun = support.has_tun()
    finding = "no netem; a forwarder in user space, over /dev/net/tun" if tun else "neither netem nor /dev/net/tun"
    return Finding("lab's delays", format_able(tun), finding, proof, "" if tun else "load the modules sch_netem or tun")


def _priority() -> Finding:
    """Try on a thread of its own, which ends with what it was given."""
    proof = "chrt -f 1 true"
    if not hasattr(os, "sched_setscheduler"):
        return Finding("real-time priority", UNKNOWN, f"{sys.platform} has another way", proof)
    try:
        in_thread(lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))).result()
        able = True
    except OSError:
        able = False
    remedy = "" if able else "run as root, or with CAP_SYS_NICE: timed layers keep time without it if idle"
    finding = "timed layers keep their time beside other work" if able else "not allowed"
    return Finding("real-time priority", format_able(able), finding, proof, remedy)
