"""Measured tables on the machines they were measured on, and the times that a calibration predicts for their rows.

A `Sample` is a table with its placement and the conditions under which its collectives were launched: a fit must
predict what the benchmark did, not what DDP does. `Sample.transport` is where those conditions enter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ddpsim.calibrating.fitting import Vector
from ddpsim.calibrating.measured import Conditions, MeasuredTable
from ddpsim.collectives.calibration import Calibration, Curve, CurvePoint
from ddpsim.collectives.conditions import GPU_BACKENDS, CollectiveOptions
from ddpsim.collectives.curve import Correction, CurveTransport, find_curves
from ddpsim.collectives.gloo.transport import GlooTransport
from ddpsim.collectives.mpi.transport import MpiTransport
from ddpsim.collectives.nccl.layout import Layout
from ddpsim.collectives.nccl.transport import NcclTransport
from ddpsim.collectives.nccl.versions import CURRENT, first_version
from ddpsim.collectives.transport import Transport
from ddpsim.common.errors import CalibrationError, InputError
from ddpsim.topology.graph import Placement, Topology

_ISOLATED_S = Calibration.priors("nccl")["nccl.isolated_s"]


@dataclass(frozen=True, slots=True)
class Sample:
    """A table on its placement, under the conditions that its header states.

    Attributes:
        sizes: bytes of each row.
        measured: seconds of each row.
        undisturbed: seconds of each row that fits and curves use (`MeasuredRow.undisturbed_s`).
        version: of NCCL, major * 1000 + minor; the current one where the header says nothing.
        version_known: whether the header says.
        algorithm: the one that was forced, or `auto`.
        gpus_per_process: more than one where one process launched on several GPUs.
        isolated: whether each collective was measured by itself, on an idle stream, instead of back to back.
        simple_only: whether NCCL_PROTO was Simple.
    """

    table: MeasuredTable
    placement: Placement
    sizes: tuple[int, ...]
    measured: Vector
    undisturbed: Vector
    version: int
    version_known: bool
    algorithm: str
    gpus_per_process: int
    isolated: bool = False
    simple_only: bool = False
    _layouts: dict[str, Layout] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, table: MeasuredTable, topology: Topology, nodes: int | None = None) -> Sample:
        """Return the sample of `table` on `nodes` nodes of `topology`; see `place_table`."""
        stated = Conditions.of(table)
        return cls(
            table=table,
            placement=place_table(table, topology, nodes),
            sizes=tuple(row.size_bytes for row in table.rows),
            measured=np.array([row.time_s for row in table.rows]),
            undisturbed=np.array([row.undisturbed_s for row in table.rows]),
            version=stated.version or CURRENT,
            version_known=stated.version is not None,
            algorithm=stated.algorithm,
            gpus_per_process=stated.gpus_per_process,
            isolated=stated.isolated,
            simple_only=stated.simple_only,
        )

    def select_rows(self, rows: Sequence[int]) -> Sample:
        """Return the sample of some rows."""
        return replace(
            self,
            sizes=tuple(self.sizes[row] for row in rows),
            measured=self.measured[list(rows)],
            undisturbed=self.undisturbed[list(rows)],
            _layouts=self._layouts,
        )

    def predict(self, calibration: Calibration) -> Vector:
        """Return the time of each row in seconds."""
        transport = self.transport(calibration)
        operation = self.table.operation
        return np.fromiter((transport.time_s(operation, size) for size in self.sizes), float, len(self.sizes))

    def curve(self) -> Curve:
        """Return the rows as a curve of exactly this machine and rank count, as if measured back to back."""
        points = zip(self.sizes, self._subtract_start(), strict=True)
        placement = self.placement
        return Curve(
            placement.topology.fingerprint(),
            placement.nodes,
            placement.gpus_per_node,
            tuple(CurvePoint(size, time_s) for size, time_s in points),
            self.algorithm,
            self.gpus_per_process,
            self.table.operation,
        )

    def _subtract_start(self) -> list[float]:
        """Return the times without an idle stream's start; no less than half of them is left."""
        backend = self.table.header.get("backend", self.placement.topology.backend)
        start_s = _ISOLATED_S if self.isolated and backend in GPU_BACKENDS else 0.0
        times: list[float] = np.maximum(self.undisturbed - start_s, self.undisturbed / 2).tolist()
        return times

    def runs(self, version: int) -> bool:
        """Whether `version` of NCCL runs on its GPUs."""
        gpus = (gpu for each in self.placement.classes for gpu in each.template.gpus)
        return all(version >= first_version(gpu.sm) for gpu in gpus)

    def layout(self) -> Layout:
        """Return what NCCL's patterns load on the placement, found once."""
        if "layout" not in self._layouts:
            self._layouts["layout"] = Layout(self.placement, self.version, simple_only=self.simple_only)
        return self._layouts["layout"]

    def with_version(self, version: int) -> Sample:
        """Return the sample as if measured with `version` of NCCL."""
        return replace(self, version=version, _layouts={})

    def transport(self, calibration: Calibration) -> Transport:
        """Return the transport whose constants are those of `calibration`, corrected by its rows where it has some."""
        # A curve is of collectives back to back (`curve`), so that with one the model it corrects must not add the
        # start of an idle stream; the whole then adds it on top.
        curves = find_curves(calibration, self.placement, self.algorithm)
        transport: Transport
        start_s = 0.0
        if calibration.backend == "gloo":
            transport = GlooTransport(self.placement, calibration)
        elif calibration.backend == "mpi":
            transport = MpiTransport(self.placement, calibration, CollectiveOptions(algorithm=self.algorithm))
        else:
            options = CollectiveOptions(
                algorithm=self.algorithm,
                isolated=self.isolated and not curves,
                gpus_per_process=self.gpus_per_process,
            )
            transport = NcclTransport(self.layout(), calibration, options)
            start_s = calibration[f"{calibration.backend}.isolated_s"] if self.isolated else 0.0
        corrections = tuple(Correction.of(curve, transport) for curve in curves)
        return CurveTransport(transport, corrections, start_s) if corrections else transport


def place_table(table: MeasuredTable, topology: Topology, nodes: int | None = None) -> Placement:
    """Return the placement of a table's ranks on `topology`.

    Raises:
        InputError: no nodes, ranks that do not divide over them, or that the topology cannot hold.
    """
    per_node = len(topology.template_of(0).gpus)
    count = (table.nodes or max(1, math.ceil((table.ranks or 0) / per_node))) if nodes is None else nodes
    if table.ranks is None and topology.compute_device == "cpu":
        raise CalibrationError("no rank count", place=table.name, remedy="put `# ranks: 2` into its header")
    if table.ranks is None or count < 1:
        return topology.place(count)
    if table.ranks % count:
        raise CalibrationError(f"{table.ranks} ranks on {count} nodes", place=table.name, remedy="give `nodes`")
    try:
        return topology.place(count, table.ranks // count)
    except InputError as error:
        error.at(f"{table.name}: {table.ranks} ranks")


def predict_times(samples: Sequence[Sample], calibration: Calibration) -> Vector:
    """Return the times of all rows of all samples, one sample after the other."""
    return np.concatenate([sample.predict(calibration) for sample in samples])
