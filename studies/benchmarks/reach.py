"""How large, how slow and how exact a step's graph is: `python -m studies.benchmarks.reach [--times] [--json]`.

Sizes are counted as in `python -m studies.size`. What a bucket becomes is every class of ours of which a prediction
makes at least one object more for each bucket more. A scheme touches the files of `ddpsim` that name it. Bands are of
one job of N, as in `python -m studies.retiming`. Whole processes are told in seconds of the processor and of the clock,
the median of five, beside what importing five libraries takes on the same machine. All have their modules compiled
already, as a program has that was installed, or run once.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from types import FrameType

from ddpsim.bucketing import BucketCaps
from ddpsim.prediction.predict import predict
from ddpsim.simulation.job import Job
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.topology.spec import load_topology
from ddpsim.workload.files import load_workload
from studies.benchmarks.speed import CAPS, PLAN
from studies.retiming.__main__ import measured
from studies.schemes.all_schemes import SCHEMES
from studies.size import on_the_way, simulation

ROOM = Path(__file__).resolve().parents[2] / "ddpsim"
IMPORTS = ("-c", "import numpy, networkx, simpy, pydantic, typer")
RESNET = ("--workload", "resnet50", "--topology", "dgx-1v")
BERT = ("predict", "--workload", "bert-large", "--topology", "dgx-h100")
PROCESSES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("predict resnet50 on 1 x 8", ("predict", *RESNET)),
    ("predict bert-large on dgx-h100, 2,048 x 8", (*BERT, "--nodes", "2048")),
    ("sweep resnet50, 12 caps, 4 sizes", ("sweep", *RESNET, "--nodes", "1,2,4,8", "--bucket-cap-mb", CAPS)),
    ("plan, 2 models, 5 machines, 4 sizes", PLAN),
    ("predict --scheme fsdp2, bert-large on 128 x 8", (*BERT, "--nodes", "128", "--scheme", "fsdp2")),
    ("--help", ("--help",)),
)


def becomes() -> list[str]:
    """Return the classes of `ddpsim` of which a prediction makes an object more, at least, for each bucket more."""
    few, fewer = _made(25.0)
    many, more = _made(5.0)
    return sorted(name for name, count in many.items() if count - few[name] >= more - fewer > 0)


def _made(cap_mib: float) -> tuple[Counter[str], int]:
    """Return how many objects of each class a prediction makes, and how many buckets it has."""
    made: Counter[str] = Counter()

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_name == "__init__":
            of = type(next(iter(frame.f_locals.values())))
            if of.__module__.startswith("ddpsim."):
                made[of.__qualname__] += 1

    workload, machine = load_workload("resnet50"), load_topology("dgx-1v")
    options = Options(caps=BucketCaps(bucket_cap_mb_list=(cap_mib,)), iterations=1)
    predict(Job(workload, machine, options=options), band=False)
    sys.setprofile(note)
    try:
        found = predict(Job(workload, machine, options=options), band=False)
    finally:
        sys.setprofile(None)
    return made, len(found.plan.buckets)


def files_of_schemes() -> dict[str, int]:
    """Return by scheme how many files of `ddpsim` have its name as a word of code."""
    texts = [path.read_text() for path in ROOM.rglob("*.py")]
    names = dict.fromkeys(each.partition(":")[0] for each in SCHEMES)
    return {name: sum(f'"{name}"' in text for text in texts) for name in names}


def seconds_of(arguments: Sequence[str], compiled: str, times: int = 5) -> tuple[float, float]:
    """Return the median seconds of the processor, and of the clock, of a Python process with its children.

    Args:
        compiled: the folder of compiled modules; what lacks there is compiled by a run that is not counted.
    """
    found = [_seconds(arguments, compiled) for _ in range(times + 1)][1:]
    cpu_s, wall_s = zip(*found, strict=True)
    return median(cpu_s), median(wall_s)


def _seconds(arguments: Sequence[str], compiled: str) -> tuple[float, float]:
    given = {**os.environ, "PYTHONPYCACHEPREFIX": compiled}
    given.pop("PYTHONDONTWRITEBYTECODE", None)
    begun_s, process = time.perf_counter(), os.fork()
    if process == 0:
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, 1)
        os.dup2(sink, 2)
        os.execve(sys.executable, [sys.executable, *arguments], given)
    _, status, usage = os.wait4(process, 0)
    if status:
        sys.exit(f"failed: {' '.join(arguments)}")
    return usage.ru_utime + usage.ru_stime, time.perf_counter() - begun_s


def lines(every: int) -> Iterator[tuple[str, float, str]]:
    """Yield each measure: what it is, its value, and its unit with what it is of."""
    for name, count in {**simulation(), **on_the_way()}.items():
        yield name.replace("_", " "), count, ""
    made = becomes()
    yield "classes of objects that one bucket becomes", len(made), ", ".join(made)
    files = files_of_schemes()
    yield "files that name a scheme, the median", median(files.values()), f"of {len(files)} schemes"
    for name, value in measured(every).items():
        yield name, value, f"one job of {every}"
    yield from times()


def times() -> Iterator[tuple[str, float, str]]:
    """Yield what whole processes take, after what the imports of five libraries take."""
    with TemporaryDirectory() as compiled:
        cpu_s, wall_s = seconds_of(IMPORTS, compiled)
        yield "imports of numpy, networkx, simpy, pydantic, typer", cpu_s, f"CPU-s, {wall_s:.2f} s"
        for name, arguments in PROCESSES:
            cpu_s, wall_s = seconds_of(("-m", "ddpsim", *arguments), compiled)
            yield name, cpu_s, f"CPU-s, {wall_s:.2f} s"


def main() -> None:
    """Print a line a measure."""
    parser = argparse.ArgumentParser(prog="python -m studies.benchmarks.reach", description=__doc__)
    parser.add_argument("--every", type=int, default=8, metavar="N", help="one job of N")
    parser.add_argument("--times", action="store_true", help="whole processes alone")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = []
    for name, value, unit in times() if given.times else lines(given.every):
        found.append({"measure": name, "value": value, "of": unit})
        if not given.json:
            print(f"{value:10,.3g}  {name}{f': {unit}' if unit else ''}", flush=True)
    if given.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
