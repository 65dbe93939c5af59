"""What predictions rest on: doubts and what would remove them; constants, workloads and machines with sources."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.constant import Constant
from ddpsim.common.tables import ResultTable
from ddpsim.prediction.doubts.constants import table_constants
from ddpsim.report.model import Table
from ddpsim.topology.graph import Cluster
from ddpsim.workload import Workload

_SOURCES = ("how", "source", "gpu", "shares_source", "host", "sample")
"""Keys of a workload's provenance that say where its times are from, most telling first."""


def assumptions(
    documents: Sequence[Mapping[str, object]],
    workloads: Iterable[Workload],
    machines: Iterable[Cluster],
    calibration: Calibration | None,
    backends: Iterable[str],
) -> tuple[Table, ...]:
    """Return the tables of what predictions assume, the doubts that weigh most first.

    Args:
        documents: rows with `iteration_s` and `doubts`.
        workloads, machines: those of the rows, each once.
        calibration: the one of their predictions.
        backends: those of their process groups.
    """
    constants = [constant for backend in dict.fromkeys(backends) for constant in _list_in_force(backend, calibration)]
    return (*doubt_tables(documents), _workloads(workloads), _machines(machines), _constants(constants))


def doubt_tables(documents: Iterable[Mapping[str, object]]) -> tuple[Table, ...]:
    """Return what each doubt moves a step by, as shares of it, the widest over all rows; no table without doubts."""
    widest: dict[tuple[str, str], tuple[float, float]] = {}
    for document in documents:
        for name, remedy, low, high in _effects(document):
            before = widest.get((name, remedy), (0.0, 0.0))
            widest[name, remedy] = min(before[0], low), max(before[1], high)
    ordered = sorted(widest.items(), key=lambda item: (item[1][0] - item[1][1], item[0]))
    rows = tuple(
        (name, f"{100 * low:+.1f} %", f"{100 * high:+.1f} %", remedy) for (name, remedy), (low, high) in ordered
    )
    note = "The 80 % bands are joined from these causes. Shown is how far each moves a step, at most over all rows."
    header = ("cause", "step, low end", "step, high end", "what would remove it")
    return (Table("What is in doubt", ResultTable(header, rows, frozenset({0, 3})), note),) if rows else ()


def _effects(document: Mapping[str, object]) -> Iterator[tuple[str, str, float, float]]:
    """Return name, remedy and both ends, as shares of the step, of each doubt in a document."""
    step, doubts = document.get("iteration_s"), document.get("doubts")
    if not isinstance(step, int | float) or not isinstance(doubts, list):
        return
    for doubt in doubts:
        yield str(doubt["name"]), str(doubt["remedy"]), doubt["low_s"] / step - 1, doubt["high_s"] / step - 1


def _workloads(workloads: Iterable[Workload]) -> Table:
    rows = tuple(
        (
            each.name,
            f"{'estimated' if each.estimated else 'recorded'}, pace of {each.device_label}, {each.precision}",
            f"{each.batch_size}",
            f"{len(each.parameters)}",
            "; ".join(str(each.provenance[key]) for key in _SOURCES if each.provenance.get(key)) or "not stated",
        )
        for each in workloads
    )
    header = ("workload", "times", "batch", "parameters", "source")
    return Table("Workloads", ResultTable(header, rows, frozenset({0, 1, 4})))


def _machines(machines: Iterable[Cluster]) -> Table:
    rows = tuple((m.name, m.confidence or "not stated", "; ".join(m.sources) or "not stated") for m in machines)
    return Table("Machines", ResultTable(("machine", "confidence", "sources"), rows, frozenset({0, 1, 2})))


def _list_in_force(backend: str, calibration: Calibration | None) -> list[Constant]:
    in_force = calibration if calibration and calibration.backend == backend else Calibration.priors(backend)
    return list(in_force.constants.values())


def _constants(constants: Sequence[Constant]) -> Table:
    measured = sum(constant.measured for constant in constants)
    title = f"Constants: {len(constants)}, {measured} of them measured"
    return Table(title, table_constants(constants), folded=True)
