"""The report of `make gpu`: how each step ended, and the figures that they gave together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from ddpsim.common.errors import UnknownNameError
from ddpsim.simulation.engine import simulate_local
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.workload import Workload
from ddpsim.workload.files import load_workload
from studies.gpu.catalogue import ALGORITHMS, IMPLEMENTATIONS, PROTOCOLS, Scope
from studies.gpu.steps import OK, Result, Steps, cause, document

MS = 1e3


def report(scope: Scope, results: Sequence[Result], kept: Steps) -> str:
    """Return the whole report as Markdown; a figure whose step gave none is a dash, a table of dashes is left out."""
    figures = Figures(scope, kept, {result.name for result in results if result.status == OK})
    sections = {
        "Steps": table(("step", "ended", "seconds", "said"), map(row, results)),
        "Captures": figures.captures(),
        "One rank under DDP against no DDP": figures.one_rank(),
        f"Ranks that share the {'GPU' if scope.on_gpu else 'CPU'}": figures.shared(),
        "Our DDP against torch's": figures.bench(),
        "Backward beside collectives and copies": figures.slowdowns(),
        "Allreduce of two ranks": figures.several(),
    }
    machine = ", ".join(f"{name} {value}" for name, value in scope.machine.items())
    parts = [f"# One {'GPU' if scope.on_gpu else 'CPU'}", machine]
    parts += [f"## {title}\n\n{text}" for title, text in sections.items() if text]
    return "\n\n".join(parts) + "\n"


def row(result: Result) -> tuple[str, ...]:
    """Return a step's row: what a failed one said first."""
    said = result.said.replace("|", "\\|").replace("\r", " ")
    return result.name, result.status, f"{result.seconds:.0f}" if result.seconds else "-", said


class Figures:
    """What the steps measured, as tables; empty text where they measured nothing.

    Args:
        scope: what steps were made for.
        kept: their output.
        good: those that succeeded.
    """

    def __init__(self, scope: Scope, kept: Steps, good: set[str]) -> None:
        self._scope, self._kept, self._good = scope, kept, good

    def captures(self) -> str:
        """Return the phases of each workload captured, and the step they make beside what was estimated."""
        header = ("workload", "forward ms", "backward ms", "optimizer ms", "hosts' ms", "step ms", "estimated ms")
        files = sorted(path for path in (self._scope.out / "workloads").glob("*.json.gz") if path.is_file())
        note = "Medians; phases on the device, then of all three on the host. A step is simulated without DDP.\n\n"
        text = table(header, (self._capture(path) for path in files))
        return note + text if text else ""

    def one_rank(self) -> str:
        """Return what DDP adds where there is nobody to communicate with."""
        kinds = [(name, kind) for name in IMPLEMENTATIONS for kind in ("", "-unstamped")]
        header = (
            "model",
            "alone ms",
            "captured ms",
            *(f"{name}{', no stamps' * bool(kind)} ms" for name, kind in kinds),
        )
        rows = []
        for model in self._scope.models:
            alone = self._document(f"alone-{model}").get("step_s")
            captured = self._scope.workload(model, "fp32", self._scope.batch(model))
            steps_s = [self._document(f"run-{model}-{name}{kind}").get("iteration_s") for name, kind in kinds]
            local = local_s(load_workload(captured)) if captured.is_file() else None
            rows.append((model, ms(alone), ms(local), *(over(step, alone) for step in steps_s)))
        return self._table(header, rows)

    def shared(self) -> str:
        """Return the steps of several ranks."""
        parts = ("iteration_s", "forward_s", "backward_compute_s", "exposed_comm_s", "ddp_overhead_s", "optimizer_s")
        header = ("ranks", "implementation", *(f"{part.removesuffix('_s').replace('_', ' ')} ms" for part in parts))
        rows = []
        for ranks in (2, 4):
            for name in IMPLEMENTATIONS:
                run = self._document(f"shared-{ranks}-{name}")
                rows.append((str(ranks), name, *(ms(run.get(part)) for part in parts)))
        return self._table(header, rows, labels=2)

    def bench(self) -> str:
        """Return the benchmark's own lines."""
        text = self._kept.output("bench").strip()
        return f"```text\n{text}\n```" if "bench" in self._good and text else ""

    def slowdowns(self) -> str:
        """Return by how much each slows the other."""
        load, copies = self._document("under-load").get("ddp", {}), self._document("copies")
        rows = (
            ("collectives over gloo", factor(load, "compute_slowdown"), factor(load, "communication_slowdown")),
            ("plain copies", factor(copies, "compute_slowdown"), factor(copies, "copy_slowdown")),
            ("the other rank's computation", factor(load, "shared_compute_slowdown"), "-"),
        )
        return self._table(("beside", "computation slows by", "which slows by"), rows)

    def several(self) -> str:
        """Return a column of times for each algorithm and protocol, or what NCCL says of several ranks on a GPU."""
        names = {"several": "NCCL's choice", "several-gloo": "gloo"}
        names |= {f"several-{a}-{p}".lower(): f"{a} {p}" for a in ALGORITHMS for p in PROTOCOLS}
        columns = {title: self._times(name) for name, title in names.items() if name in self._good}
        sizes = sorted({size for times in columns.values() for size in times})
        rows = ((f"{size:,}", *(us(times.get(size)) for times in columns.values())) for size in sizes)
        text = table(("bytes", *(f"{title} us" for title in columns)), rows)
        refused = self._kept.result("several")
        if refused is not None and refused.status != OK:
            errors = (self._kept.folder("several") / "stderr.txt").read_text(errors="replace")
            return f"NCCL takes no two ranks on one GPU here: {cause('', errors) or refused.said}"
        return text

    def _capture(self, path: Path) -> tuple[str, ...]:
        workload = load_workload(path)
        phases = (workload.forward, workload.backward, workload.optimizer)
        hosts_s = sum(median(phase.host_s) for phase in phases)
        devices = (ms(median(phase.device_s)) for phase in phases)
        return workload.name, *devices, ms(hosts_s), ms(local_s(workload)), ms(estimated_s(workload.name))

    def _document(self, name: str) -> dict[str, Any]:
        try:
            return document(self._kept.output(name)) if name in self._good else {}
        except ValueError:
            return {}

    def _times(self, name: str) -> dict[int, float]:
        return {row["size"]: row["in_place"]["time"] for row in self._document(name).get("results", [])}

    def _table(self, header: Sequence[str], rows: Iterable[Sequence[str]], labels: int = 1) -> str:
        """Return a table without the rows in which nothing was measured."""
        return table(header, (row for row in rows if any(cell != "-" for cell in row[labels:])))


def local_s(workload: Workload) -> float:
    """Return the period of a workload's step without DDP."""
    return median(iteration.iteration_s for iteration in simulate_local(workload, Options()))


def estimated_s(name: str) -> float | None:
    """Return the same of the workload of this name that is shipped; None where there is none."""
    try:
        return local_s(load_workload(name))
    except UnknownNameError:
        return None


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; empty without rows."""
    lines = [_line(cells) for cells in rows]
    return "\n".join([_line(header), _line(["---"] * len(header)), *lines]) if lines else ""


def ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * MS:.2f}"


def us(microseconds: float | None) -> str:
    return "-" if microseconds is None else f"{microseconds:.1f}"


def factor(factors: dict[str, Any], name: str) -> str:
    return f"{factors[name]:.3f}" if name in factors else "-"


def over(seconds: float | None, alone_s: float | None) -> str:
    """Return a step, and by how much it is longer than the model's alone."""
    if seconds is None or alone_s is None:
        return ms(seconds)
    return f"{ms(seconds)} ({(seconds / alone_s - 1) * 100:+.1f} %)"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
