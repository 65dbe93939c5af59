"""A model of which layers are left out by chance, run on the lab and predicted: what that gains by share and buckets.

python -m studies.orders.drop_runs capture DIR    # the workload, and what is predicted of every run
python -m studies.orders.drop_runs run DIR        # the runs, each in turn, four minutes: as root, on an idle machine
python -m studies.orders.drop_runs keep DIR       # both side by side, into drop_runs.json beside this file

Two ranks of a core each train a ResNet-50 in batches of two. Its blocks of equal input and output in the last two
stages, 14 of 25 million parameters, are left out with a chance each, the same on both ranks, drawn alike in prediction
and run.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from ddpsim.common.files import json_text, write_whole
from ddpsim.prediction.predict import predict
from ddpsim.simulation.job import Job
from ddpsim.simulation.jobs.job_options import DropBuckets
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.topology.spec import load_topology
from ddpsim.workload.files import load_workload
from studies.command import parser

KEPT = Path(__file__).with_name("drop_runs.json")
NETWORK = Path(__file__).resolve().parents[2] / "traces" / "order-runs" / "lab-plain.yaml"
LAYERS = (*(f"layer3.{number}" for number in range(1, 6)), "layer4.1", "layer4.2")
SHARES = (0.5, 0.25)
BUCKETS: tuple[DropBuckets, ...] = ("mixed", "aligned", "remapped")
CASES: tuple[tuple[float, DropBuckets], ...] = (
    (0.0, "mixed"),
    *((share, buckets) for share in SHARES for buckets in BUCKETS),
)
ORDER = (0, 1, 2, 3, 0, 4, 5, 6, 0)
"""In which cases are run: the whole model in between, so that what drifts shows."""
ITERATIONS = 16
MODEL = ("--model", "resnet50", "--batch-size", "2", "--threads", "1")


def _predicted(workload: Path) -> list[dict[str, Any]]:
    rows = []
    for share, buckets in CASES:
        drop = dict.fromkeys(LAYERS, share) if share else {}
        options = Options(drop=drop, drop_buckets=buckets, iterations=ITERATIONS)
        made = predict(Job(load_workload(workload), load_topology(str(NETWORK)), nodes=2, options=options), band=False)
        rows.append({"share": share, "buckets": buckets, "iteration_s": made.iteration_s})
    return rows


def capture(folder: Path) -> None:
    """Record the model alone and write what is predicted of the runs."""
    folder.mkdir(parents=True, exist_ok=True)
    workload = folder / "workload.json.gz"
    both = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    subprocess.run([sys.executable, *both, "-m", "ddpexec", "capture", *MODEL, "-o", workload], check=True)
    document = json_text({"rows": _predicted(workload), "iterations": ITERATIONS}).encode()
    for path in (folder / "predicted.json", KEPT):
        write_whole(path, document)


def run(folder: Path) -> None:
    """Run every case; what is there already is kept."""
    for number, case in enumerate(ORDER):
        share, buckets = CASES[case]
        out = folder / f"run-{number}.json"
        if out.exists():
            continue
        drop = [word for layer in LAYERS if share for word in ("--drop", f"{layer}:{share}")]
        asked = [*MODEL, *drop, *(("--drop-buckets", buckets) if share else ()), "--iterations", str(ITERATIONS)]
        lab = ["-m", "ddpexec", "netlab", "--ranks", "2", "--rate", "1gbit", "--"]
        command = [sys.executable, *lab, sys.executable, "-m", "ddpexec", "run", *asked, "--json"]
        done = subprocess.run(
            [*command, "--out", folder / f"trace-{number}"], check=True, capture_output=True, text=True
        )
        out.write_text(done.stdout)


def keep(folder: Path) -> None:
    """Write predicted and measured steps side by side; of a case that was run several times the mean."""
    rows = json.loads((folder / "predicted.json").read_text())["rows"]
    steps: dict[int, list[float]] = {}
    for number, case in enumerate(ORDER):
        if (out := folder / f"run-{number}.json").exists():
            steps.setdefault(case, []).append(json.loads(out.read_text())["step_s"])
    places = {(row["share"], row["buckets"]): row for row in rows}
    for case, found in steps.items():
        places[CASES[case]]["measured_s"] = fmean(found)
    write_whole(KEPT, json_text({"rows": rows, "iterations": ITERATIONS}).encode())


def lines() -> Iterator[str]:
    """Yield the runs beside what was predicted of them; nothing where none are kept."""
    if not KEPT.exists():
        return
    rows = json.loads(KEPT.read_text())["rows"]
    whole = rows[0]
    over = [row["measured_s"] / row["iteration_s"] - 1 for row in rows[1:] if "measured_s" in row]
    yield (
        "Measured on the lab (`python -m studies.orders.drop_runs`): a ResNet-50 that computes for real, two ranks of "
        "a core each, a 1 Gb/s link, 14 of its 25 million parameters in blocks that are left out by chance; the "
        "prediction was made before the runs from a capture of the model. The whole step: "
        f"{1e3 * whole['iteration_s']:.0f} ms predicted, {_measured_ms(whole)} measured. Each case was run once, 16 "
        "steps, on a machine that was otherwise idle; three runs of the whole model are within 1.7 %. Steps of which "
        f"layers are left out take {min(over):.0%} to {max(over):.0%} longer than predicted, those with a "
        "chance of a quarter most: what leaving out costs a host is not in the model. Only `aligned` "
        "buckets at a half gain what is predicted. That stochastic depth trains on two ranks as on one process is a "
        "test (`tests/ddpexec/ddp/test_drop.py`)."
    )
    yield ""
    yield "| chance | buckets | predicted gain | measured gain |"
    yield "|--:|---|--:|--:|"
    for row in rows[1:]:
        gains = " | ".join(
            f"{1 - row[name] / whole[name]:+.1%}" if name in row else "-" for name in ("iteration_s", "measured_s")
        )
        yield f"| {row['share']:g} | `{row['buckets']}` | {gains} |"


def _measured_ms(row: Mapping[str, Any]) -> str:
    return f"{1e3 * row['measured_s']:.0f} ms" if "measured_s" in row else "not yet"


def main(arguments: Sequence[str]) -> None:
    """Do one of the three."""
    actions = {"capture": capture, "run": run, "keep": keep}
    asked = parser(__doc__)
    asked.add_argument("what", choices=actions)
    asked.add_argument("folder", metavar="DIR", type=Path)
    given = asked.parse_args(arguments)
    actions[given.what](given.folder)


if __name__ == "__main__":
    main(sys.argv[1:])
