"""Commands that run or keep something, and what is asked of what they leave."""

from __future__ import annotations

import contextlib
import functools
import gzip
import json
import os
import re
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ddpexec.lab.netlab import lab as lab_module
from ddpexec.lab.netlab import support

MARK = "STUDIES_KILLS"
MODEL = ("--workload", "mlp", "--topology", "dgx-1v")
RUN = ("run", "--model", "mlp", "--device", "cpu", "--iterations", "3", "--out", "{out}")
CAMPAIGN = """name: short
iterations: 2
max_step: 60s
microbench: {minbytes: 64K, maxbytes: 64K, stepfactor: 16, load_seconds: 0.2}
networks:
  pair: {ranks: 2, rate: 1gbit}
runs:
  - {network: pair, model: mlp, batch_size: 2}
"""


@dataclass(frozen=True, slots=True)
class Command:
    """A command that keeps something under `{out}`.

    Attributes:
        words: after the interpreter's; `{file}` is a campaign's file.
        same: whether each run leaves the same bytes; of one that measures, the same names and whole documents.
        lab: whether it builds network namespaces, and takes a minute.
        rank: whether it is a rank, which ends with 2 and without a word on SIGTERM: torchrun sends it where another
            rank has failed, and that one says why.
    """

    words: Sequence[str]
    same: bool = True
    lab: bool = False
    rank: bool = False


def _ddpsim(*words: str) -> Command:
    return Command(("-m", "ddpsim", *words))


def _ddpexec(*words: str, lab: bool = False, rank: bool = False) -> Command:
    return Command(("-m", "ddpexec", *words), same=False, lab=lab, rank=rank)


COMMANDS: dict[str, Command] = {
    "predict": _ddpsim("predict", *MODEL, "--trace", "{out}"),
    "sweep": _ddpsim("sweep", *MODEL, "--nodes", "1,2", "--bucket-cap-mb", "1,5", "--workers", "1", "-o", "{out}"),
    "sweep, workers": _ddpsim(
        "sweep", *MODEL, "--nodes", "1,2", "--bucket-cap-mb", "1,5", "--workers", "2", "-o", "{out}"
    ),
    "plan": _ddpsim("plan", *MODEL, "--nodes", "1,2", "--workers", "1", "-o", "{out}"),
    "compare": _ddpsim("compare", *MODEL, "--nodes", "1,2", "--workers", "1", "-o", "{out}"),
    "report": _ddpsim("compare", *MODEL, "--nodes", "1,2", "--workers", "1", "--report", "{out}"),
    "buckets": _ddpsim("buckets", "--workload", "mlp", "-o", "{out}"),
    "capture": _ddpexec("capture", "--model", "mlp", "--device", "cpu", "--iterations", "3", "-o", "{out}"),
    "microbench": _ddpexec("microbench", "-b", "4K", "-e", "16K", "-o", "{out}", rank=True),
    "run": _ddpexec(*RUN, rank=True),
    "netlab": _ddpexec(
        "netlab", "--ranks", "2", "--rate", "1gbit", "--", sys.executable, "-m", "ddpexec", *RUN, lab=True
    ),
    "campaign": _ddpexec("campaign", "{file}", "--out", "{out}", lab=True),
}


@functools.cache
def possible() -> list[str]:
    """Return the names of the commands that this machine can run: a lab needs root and the kernel's shapers."""
    return [name for name, command in COMMANDS.items() if not (command.lab and support.list_missing())]


def alone(marked: str) -> dict[str, str]:
    """Return the environment of a command that is the only rank, with a mark that all that it starts inherit."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    return {**os.environ, **rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, MARK: marked}


def living(marked: str) -> list[int]:
    """Return the processes that live and inherited a mark, in whatever session."""
    wanted, found = f"{MARK}={marked}".encode(), []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if wanted in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return found


def dead_labs() -> set[str]:
    """Return the namespaces of labs whose process is gone."""
    return {
        name
        for name in lab_module.namespaces()
        if (owner := re.match(rf"{lab_module.PREFIX}-(\d+)-", name)) and not os.path.exists(f"/proc/{owner[1]}")
    }


def is_whole(name: str, content: bytes) -> bool:
    """Return whether a file that a measuring command leaves is a whole document, as its name says."""
    try:
        raw = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
        if name.endswith((".json", ".json.gz")) or Path(name).name == "out":
            json.loads(raw)
        return bool(raw)
    except (OSError, EOFError, ValueError):
        return False
