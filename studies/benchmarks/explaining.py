"""What `ddpsim explain` takes of large traces: `python -m studies.benchmarks.explaining [--ranks 8] [--size-mb 500]`.

The public trace of torch's DDP is repeated until a rank's file has the size asked for, with times, correlations and
step numbers moved on, in the profiler's own layout. Printed are the seconds of wall and of processor a GB, how busy the
processors were, and the most memory that all processes held at once (proportional set size, sampled).
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PUBLIC = Path(__file__).parents[2] / "tests" / "data" / "traces" / "hta_resnet50_ddp_a100_rank0of2.json.gz"
_STEPS, _FIRST_STEP = 3, 4
"""Steps of the public trace, and the number of the first."""
_NUMBERS = ("External id", "Record function id", "correlation", "Sequence number")


def write_rank(path: Path, rank: int, world_size: int, size_bytes: int) -> None:
    """Write a rank's trace of at least `size_bytes`."""
    with open(path, "w") as file:
        file.write(_header(rank, world_size))
        comma = ""
        for event in _repeated():
            text = json.dumps(event)
            file.write(f"{comma}\n  {{\n    {text[1:-1]}\n  }}")
            comma = ","
            if file.tell() >= size_bytes and event.get("last"):
                break
        file.write("\n  ]\n}\n")


def copy_rank(source: Path, path: Path, rank: int, world_size: int) -> None:
    """Write another rank's trace with the events of the first."""
    with open(source, "rb") as whole, open(path, "wb") as file:
        whole.seek(len(_header(0, world_size)))
        file.write(_header(rank, world_size).encode())
        shutil.copyfileobj(whole, file, 1 << 22)


def _header(rank: int, world_size: int) -> str:
    info = json.dumps({"backend": "nccl", "rank": rank, "world_size": world_size})
    devices = json.dumps([{"id": rank, "name": "NVIDIA A100-PG509-200"}])
    return (
        f'{{\n  "schemaVersion": 1,\n  "deviceProperties": {devices},\n  "distributedInfo": {info},\n  "traceEvents": ['
    )


def _repeated() -> Iterator[dict[str, Any]]:
    """Yield the public trace's events again and again, each time behind the last."""
    with gzip.open(PUBLIC) as raw:
        events = [event for event in json.load(raw)["traceEvents"] if event["ph"] != "M"]
    marks = [event for event in events if "ProfilerStep#" in event["name"]]
    begin, end = min(m["ts"] for m in marks), max(m["ts"] + m["dur"] for m in marks)
    events = [e for e in events if e["ph"] == "X" and e["cat"] != "Trace" and begin <= e["ts"]]
    turn = 0
    while True:
        for number, event in enumerate(events):
            args = {
                key: value + turn * 1_000_000 if key in _NUMBERS and isinstance(value, int) else value
                for key, value in event.get("args", {}).items()
            }
            moved = {**event, "ts": round(event["ts"] + turn * (end - begin), 3), "args": args}
            if match := re.fullmatch(r"ProfilerStep#(\d+)", event["name"]):
                moved["name"] = f"ProfilerStep#{int(match[1]) + turn * _STEPS}"
            if number + 1 == len(events):
                moved["last"] = True
            yield moved
        turn += 1


class _Watch(threading.Thread):
    """It samples the memory that a process and those below it hold together."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid, self.most_bytes = pid, 0

    def run(self) -> None:
        while True:
            self.most_bytes = max(self.most_bytes, sum(_held(pid) for pid in _below(self.pid)))
            time.sleep(0.2)


def _below(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return [pid]
    return [pid, *(each for child in children for each in _below(int(child)))]


def _held(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    match = re.search(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)
    return int(match[1]) * 1024 if match else 0


def measure(folder: Path, size_bytes: int) -> str:
    """Return a line on `ddpsim explain` of a folder of traces that hold `size_bytes` together."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    command = [sys.executable, "-m", "ddpsim", "explain", str(folder), "--shapes", "resnet50", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    watch = _Watch(process.pid)
    watch.start()
    _, said = process.communicate()
    if process.returncode:
        raise SystemExit(said.decode())
    wall_s, after = time.monotonic() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    gigabytes = size_bytes / 1e9
    return (
        f"{gigabytes:.2f} GB: {wall_s:.1f} s ({wall_s / gigabytes:.1f} s a GB), processors {cpu_s:.1f} s "
        f"({cpu_s / gigabytes:.1f} s a GB, {cpu_s / wall_s:.2f} busy), memory {watch.most_bytes / 1e6:.0f} MB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--size-mb", type=int, default=500)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        first = folder / "rank0.json"
        write_rank(first, 0, given.ranks, given.size_mb * 1_000_000)
        for rank in range(1, given.ranks):
            copy_rank(first, folder / f"rank{rank}.json", rank, given.ranks)
        os.sync()
        print(measure(folder, sum(file.stat().st_size for file in folder.iterdir())))


if __name__ == "__main__":
    main()
