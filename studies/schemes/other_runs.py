"""Lab runs that a campaign has no key for, MPI and pipelines beside data parallelism, each predicted before it runs.

`sudo env OMP_NUM_THREADS=1 python -m studies.schemes.other_runs run DIR` measures networks and runs for eight minutes;
`keep DIR` writes what the page shows of it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ddpexec.lab.campaign.report import percent
from ddpexec.lab.campaign.spec import Configuration, load_campaign
from ddpexec.lab.campaign.stages import describe_network, measure_network, stretch_workload
from ddpsim.common.files import write_whole
from ddpsim.workload.files import load_workload, save_workload
from studies.command import parser

KEPT = Path(__file__).with_name("other_runs.json")
CAMPAIGN = Path(__file__).resolve().parents[2] / "traces" / "rows.yaml"
"""Whose networks and workload these runs have."""

OTHER = ("mpi", "pipelines")
"""Kinds of runs."""

_OVER_TCP = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,tcp"}
"""Ranks of one machine would talk through its memory, beside the shaped links."""

MPI = [
    (network, wire, cap, impl)
    for network, wire in (("pair", 1.5), ("quad", 1.0))
    for cap, impl in ((4, "ddpexec"), (None, "ddpexec"), (4, "torch"))
]
PIPELINES = [
    ("gpipe", 4, "2MiB"), ("1f1b", 4, "2MiB"), ("1f1b", 8, "2MiB"), ("1f1b", 4, "8MiB"), ("interleaved", 4, "2MiB"),
    ("gpipe", 8, "8MiB"),
]  # fmt: skip
"""Order, micro-batches and what stages send, of two stages by two copies on `quad`."""

_WIRE = 3.0
"""Wire time over backward of a pipeline's micro-batch, which makes it short."""


@dataclass(frozen=True, slots=True)
class OtherRun:
    """What was predicted and measured of one run."""

    kind: str
    name: str
    predicted_s: float
    measured_s: float

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted_s / self.measured_s - 1


def kept() -> list[OtherRun]:
    """Return the runs that are kept."""
    return [OtherRun(**each) for each in json.loads(KEPT.read_text())]


def table(kind: str) -> str:
    """Return the runs of a kind as Markdown."""
    rows = [
        f"| {run.name} | {run.measured_s * 1e3:.1f} | {run.predicted_s * 1e3:.1f} | {percent(run.error, signed=True)} |"
        for run in kept()
        if run.kind == kind
    ]
    return "\n".join(["| run | measured, ms | predicted before, ms | error |", "|---|--:|--:|--:|", *rows])


def run_all(out: Path) -> None:
    """Run what is not in `out` yet."""
    of_network = {each.run.network: each for each in reversed(load_campaign(CAMPAIGN).configurations)}
    for network, wire, cap, impl in MPI:
        _run_mpi(out, of_network[network], wire, cap, impl)
    for order, micro_batches, boundary in PIPELINES:
        _run_pipeline(out, of_network["quad"], order, micro_batches, boundary)


def _run_mpi(out: Path, configuration: Configuration, wire: float, cap: int | None, impl: str) -> None:
    topology, workload = _prepared(out, configuration, wire)
    folder = out / f"mpi-{configuration.run.network}"
    bench, calibration = folder / "allreduce.json", folder / "calibration.json"
    if not calibration.exists():
        folder.mkdir(parents=True, exist_ok=True)
        _in_lab(topology, "microbench", "--backend", "mpi", "-b", "16K", "-e", "64M", "-f", "4", "-o", str(bench))
        _call("ddpsim", "calibrate", str(bench), "--topology", topology, "--backend", "mpi", "-o", str(calibration))
    name = f"{'default' if cap is None else f'cap{cap}'}-{impl}"
    if (folder / name / "run.json").exists():
        return
    caps = [] if cap is None else ["--bucket-cap-mb", str(cap)]
    asked = ["--workload", workload, "--backend", "mpi", *caps]
    said = _call("ddpsim", "predict", *asked, "--topology", topology, "--calibration", str(calibration), "--json")
    write_whole(folder / f"{name}.json", said.encode())
    rest = ["--iterations", "12", "--local-iterations", "5", "--out", str(folder / name)]
    _in_lab(topology, "run", *asked, "--impl", impl, *rest)
    said = _call("ddpsim", "validate", str(folder / f"{name}.json"), str(folder / name), "--json")
    write_whole(folder / f"{name}-validated.json", said.encode())


def _run_pipeline(out: Path, configuration: Configuration, order: str, micro_batches: int, boundary: str) -> None:
    topology, workload = _prepared(out, configuration, _WIRE)
    name = f"{order}-m{micro_batches}-{boundary}"
    folder = out / "pipelines"
    if (folder / name / "pipeline.json").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    several = ["--stages-per-rank", "2"] if order == "interleaved" else []
    asked = ["--workload", workload, "--stages", "2", "--micro-batches", str(micro_batches), "--boundary", boundary]
    network = describe_network(configuration, out / "networks-of-rows")
    measure_network(configuration, network, out)
    where = ["--topology", topology, "--calibration", str(network.calibration), "--order", order]
    write_whole(folder / f"{name}.json", _call("ddpsim", "pipeline", *asked, *several, *where, "--json").encode())
    said = ["--predicted", str(folder / f"{name}.json"), "--iterations", "8", "--out", str(folder / name)]
    _in_lab(topology, "run", "--pipeline", order, *asked, *several, *said)


def _prepared(out: Path, configuration: Configuration, wire: float) -> tuple[str, str]:
    """Return the files of a network's topology and of the workload at a wire time over backward."""
    topology = describe_network(configuration, out / "networks-of-rows").topology
    run = configuration.run.model_copy(update={"wire_over_backward": wire})
    path = out / f"{run.network}-wire{wire:g}.json.gz"
    if not path.exists():
        source = load_workload(str(run.workload))
        made = Configuration(**{**_fields(configuration), "run": run})
        save_workload(stretch_workload(made, source), path)
    return str(topology), str(path)


def _fields(configuration: Configuration) -> Mapping[str, Any]:
    return {name: getattr(configuration, name) for name in configuration.__dataclass_fields__}


def _call(package: str, *arguments: str) -> str:
    made = subprocess.run(
        [sys.executable, "-m", package, *arguments], check=True, stdout=subprocess.PIPE, text=True,
        env={**os.environ, **_OVER_TCP},
    )  # fmt: skip
    return made.stdout


def _in_lab(topology: str, *arguments: str) -> None:
    _call("ddpexec", "netlab", "--topology", topology, "--", sys.executable, "-m", "ddpexec", *arguments)


def found_in(out: Path) -> Iterator[OtherRun]:
    """Yield what was run in `out`."""
    for network, wire, cap, impl in MPI:
        name = f"{'default' if cap is None else f'cap{cap}'}-{impl}"
        path = out / f"mpi-{network}" / f"{name}-validated.json"
        if path.exists():
            said = json.loads(path.read_text())["iterations"]
            label = f"{network}, wire {wire:g}, {'default caps' if cap is None else f'{cap} MiB'}, {impl}"
            yield OtherRun("mpi", label, said["predicted_s"], said["measured_s"])
    for order, micro_batches, boundary in PIPELINES:
        path = out / "pipelines" / f"{order}-m{micro_batches}-{boundary}" / "pipeline.json"
        if path.exists():
            said = json.loads(path.read_text())
            label = f"{order}, {micro_batches} micro-batches, {boundary} between stages"
            yield OtherRun("pipelines", label, said["predicted_step_s"], said["step_s"])


def main(arguments: Sequence[str]) -> int:
    """Run what is not there yet, or keep what is."""
    asked = parser(__doc__)
    asked.add_argument("action", choices=["run", "keep"])
    asked.add_argument("out", metavar="DIR", type=Path)
    given = asked.parse_args(arguments)
    if given.action == "run":
        run_all(given.out)
    else:
        write_whole(KEPT, (json.dumps([asdict(each) for each in found_in(given.out)], indent=1) + "\n").encode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
