"""Files that commands write, and files of earlier versions that they read."""

from __future__ import annotations

import gzip
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.pages import parse
from tests.unchanged.command import answer
from tests.unchanged.values import FOLDER, PREDICT

KEPT = Path("tests/kept")
TRACED = (
    PREDICT, "predict --workload resnet50 --topology dgx-1v --scheme fsdp2",
    "predict --workload mlp --topology lab-flat",
    "predict --workload resnet50 --topology dgx-1v --scheme parameter-server", "predict --workload resnet50 --topology "
    "4x1080ti-pcie --input-stage load=5ms,copy=38MB,pipelined", "predict --workload gpt2-small@a100-amp-b8 --topology "
    "dgx-a100 --nodes 2 --pipeline 1f1b:2,micro-batches=4",
)  # fmt: skip
REPORTED = (
    "plan --workload resnet50 --topology dgx-1v --nodes 1,2", "sweep --workload resnet50 --topology dgx-1v "
    "--bucket-cap-mb 1,25", "compare --workload resnet50 --topology dgx-1v --topology dgx-a100 --price dgx-1v=20USD/h",
    "explain tests/ddpsim/explaining/cpu-ddp", f"validate {FOLDER}/prediction.json tests/kept/first/run",
    "plan --workload gpt2-small@a100-amp-b8 --topology dgx-a100 --search --pipeline 1f1b:2",
    "plan --workload resnet50 --topology dgx-1v --schemes ddp,zero1",
)  # fmt: skip
LOADED = (
    *(f"buckets --workload {KEPT}/{each}/workload.json" for each in ("first",)),
    f"predict --workload {KEPT}/first/workload.json --topology {KEPT}/first/topology.yaml",
    f"predict --workload {KEPT}/first/workload.json --topology loopback --plan {KEPT}/first/plan.json",
    f"predict --workload {KEPT}/first/workload.json --topology loopback --calibration {KEPT}/first/calibration.json",
    f"validate {KEPT}/first/prediction.json {KEPT}/first/run", f"constants --calibration {KEPT}/first/calibration.json",
    f"calibrate {KEPT}/first/allreduce.json --topology loopback -o {FOLDER}/of-kept.json",
    f"order {KEPT}/first/run", f"explain {KEPT}/first/run",
)  # fmt: skip
OWN = (
    "predict --workload resnet50 --topology dgx-1v --nodes 2 --scheme tests.unchanged.own:lazy",
    "predict --workload mlp --topology lab-flat --order drift --predictor tests.unchanged.own:MedianReady",
    "order-bench --steps 5 --topology loopback --predictor tests.unchanged.own:MedianReady",
)


def files() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield what is written, and what is read."""
    for number, line in enumerate(TRACED):
        yield f"trace of {line}", lambda line=line, number=number: trace_of(line, FOLDER / f"trace-{number}")
    for number, line in enumerate(REPORTED):
        yield f"page of {line}", lambda line=line, number=number: page_of(line, FOLDER / f"page-{number}.html")
    for number, line in enumerate(
        (
            "sweep --workload resnet50 --topology dgx-1v --bucket-cap-mb 1,25",
            "compare --workload resnet50 --topology dgx-1v --nodes 1,2",
        )
    ):
        yield f"journal of {line}", lambda line=line, number=number: journal_of(line, FOLDER / f"rows-{number}.jsonl")
    for line in (*LOADED, *OWN):
        yield f"{line} (document)", lambda line=line: answer([*line.split(), "--json"])
        yield f"{line} (text)", lambda line=line: answer(line.split())


def trace_of(line: str, folder: Path) -> dict[str, Any]:
    """Return of each file of a simulated trace how many events of a name there are, and their times summed."""
    shutil.rmtree(folder, ignore_errors=True)
    made = answer([*line.split(), "--trace", str(folder)])
    return {
        "exit": made["exit"],
        **{str(path.relative_to(folder)): summed(path) for path in sorted(folder.rglob("*.*"))},
    }


def summed(path: Path) -> Any:
    """Return a file's events by name: count, sum of begins, sum of durations; another file whole."""
    raw = path.read_bytes()
    document = json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)
    if "traceEvents" not in document:
        return document
    counts: Counter[str] = Counter()
    times: dict[str, list[float]] = {}
    for event in document["traceEvents"]:
        counts[event["name"]] += 1
        total = times.setdefault(event["name"], [0.0, 0.0])
        total[0] += float(event.get("ts", 0.0))
        total[1] += float(event.get("dur", 0.0))
    return {name: [count, *times[name]] for name, count in counts.items()}


def page_of(line: str, path: Path) -> dict[str, Any]:
    """Return the text of a report."""
    path.unlink(missing_ok=True)
    made = answer([*line.split(), "--report", str(path)])
    return {"exit": made["exit"], "text": parse(path.read_text()).text if path.exists() else made["said"]}


def journal_of(line: str, path: Path) -> dict[str, Any]:
    """Return the rows that a command writes, and what it says when it finds them there."""
    for each in path.parent.glob(f"{path.name}*"):
        each.unlink()
    first = answer([*line.split(), "-o", str(path)])
    rows = [json.loads(text) for text in path.read_text().splitlines()]
    again = answer([*line.split(), "-o", str(path)])
    return {"first": first, "rows": rows, "again": again}
