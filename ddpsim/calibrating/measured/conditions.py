"""What a measured table's header states of how its collectives were launched."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ddpsim.calibrating.measured.table import MeasuredTable


@dataclass(frozen=True, slots=True)
class Conditions:
    """How a table's collectives were launched, as its header states it.

    Attributes:
        version: of NCCL, major * 1000 + minor; None where the header says nothing.
        algorithm: the one that was forced, or `auto`.
        gpus_per_process: more than one where one process launched on several GPUs.
        isolated: whether each collective was measured by itself, on an idle stream, instead of back to back.
        simple_only: whether NCCL_PROTO was Simple.
    """

    version: int | None = None
    algorithm: str = "auto"
    gpus_per_process: int = 1
    isolated: bool = False
    simple_only: bool = False

    @classmethod
    def of(cls, table: MeasuredTable) -> Conditions:
        """Return the conditions of `table`."""
        header = table.header
        stated = header.get("algorithm", "").lower()
        forced = next((name for name in ("ring", "tree", "nvls") if stated.startswith(name)), "auto")
        simple = header.get("proto", "").lower().startswith("simple")
        return cls(_version(header.get("nccl", "")), forced, _gpus_per_process(header), table.isolated, simple)


def _version(text: str) -> int | None:
    match = re.match(r"(\d{1,9})\.(\d{1,9})(?!\d)", text)
    return int(match[1]) * 1000 + int(match[2]) if match else None


def _gpus_per_process(header: Mapping[str, str]) -> int:
    for key, pattern in (("command", r"-g (\d{1,9})\b"), ("mode", r"nGpus (\d{1,9})\b")):
        if match := re.search(pattern, header.get(key, "")):
            return int(match[1])
    return 1
