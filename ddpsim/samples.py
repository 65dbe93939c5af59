"""Measured tables put on the machines they were measured on, and what a calibration predicts for their rows."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ddpsim.collectives.calibration import Calibration, Curve, CurvePoint
from ddpsim.collectives.curve import CurveTransport, matching
from ddpsim.collectives.gloo import GlooTransport
from ddpsim.collectives.nccl import NcclTransport
from ddpsim.collectives.nccl_layout import Layout
from ddpsim.collectives.nccl_versions import CURRENT
from ddpsim.collectives.transport import Transport
from ddpsim.errors import CalibrationError, InputError
from ddpsim.fitting import Vector
from ddpsim.measured import MeasuredTable
from ddpsim.topology.graph import Placement, Topology


@dataclass(frozen=True, slots=True)
class Sample:
    """A table on its placement, with the conditions its header states.

    Attributes:
        sizes: bytes of each row.
        measured: seconds of each row.
        undisturbed: what fits and curves take for it (`MeasuredRow.undisturbed_s`).
        version: of NCCL, major * 1000 + minor; the current one where the header says nothing.
        version_known: whether the header says.
        algorithm: the one that was forced, or `auto`.
        gpus_per_process: more than one where one process launched on several GPUs.
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
    simple_only: bool = False
    _layouts: dict[str, Layout] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, table: MeasuredTable, topology: Topology, nodes: int | None = None) -> Sample:
        """Return the sample of `table` on `nodes` nodes of `topology`; see `place_table`."""
        return cls(
            table=table,
            placement=place_table(table, topology, nodes),
            sizes=tuple(row.size_bytes for row in table.rows),
            measured=np.array([row.time_s for row in table.rows]),
            undisturbed=np.array([row.undisturbed_s for row in table.rows]),
            version=_version(table.header.get("nccl", "")) or CURRENT,
            version_known=_version(table.header.get("nccl", "")) is not None,
            algorithm=_forced(table.header.get("algorithm", "")),
            gpus_per_process=_gpus_per_process(table.header),
            simple_only=table.header.get("proto", "").lower().startswith("simple"),
        )

    def only(self, rows: Sequence[int]) -> Sample:
        """Return the sample of some rows."""
        return replace(
            self,
            sizes=tuple(self.sizes[row] for row in rows),
            measured=self.measured[list(rows)],
            undisturbed=self.undisturbed[list(rows)],
            _layouts=self._layouts,
        )

    def predicted(self, calibration: Calibration) -> Vector:
        """Return the time of each row in seconds."""
        transport = self.transport(calibration)
        return np.fromiter(map(transport.allreduce_s, self.sizes), float, len(self.sizes))

    def curve(self) -> Curve:
        """Return the rows as a curve of exactly this machine and rank count."""
        points = zip(self.sizes, self.undisturbed.tolist(), strict=True)
        placement = self.placement
        return Curve(
            placement.topology.fingerprint(),
            placement.nodes,
            placement.gpus_per_node,
            tuple(CurvePoint(size, time_s) for size, time_s in points),
        )

    def layout(self) -> Layout:
        """Return what NCCL's patterns load on the placement, found once."""
        if "layout" not in self._layouts:
            self._layouts["layout"] = Layout(self.placement, self.version, simple_only=self.simple_only)
        return self._layouts["layout"]

    def at_version(self, version: int) -> Sample:
        """Return the sample as if measured with `version` of NCCL."""
        return replace(self, version=version, _layouts={})

    def transport(self, calibration: Calibration) -> Transport:
        """Return what the rows were measured on, as `calibration` has it."""
        transport: Transport
        if calibration.backend == "gloo":
            transport = GlooTransport(self.placement, calibration)
        else:
            transport = NcclTransport(
                self.layout(),
                calibration,
                algorithm=self.algorithm,
                isolated=False,
                gpus_per_process=self.gpus_per_process,
            )
        curve = matching(calibration, self.placement)
        return transport if curve is None else CurveTransport.over(transport, curve)


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
        raise CalibrationError(f"{table.ranks} ranks on {count} nodes", place=table.name, remedy="give --nodes")
    try:
        return topology.place(count, table.ranks // count)
    except InputError as error:
        error.at(f"{table.name}: {table.ranks} ranks")


def predicted(samples: Sequence[Sample], calibration: Calibration) -> Vector:
    """Return the times of all rows of all samples, one sample after the other."""
    return np.concatenate([sample.predicted(calibration) for sample in samples])


def _version(text: str) -> int | None:
    match = re.match(r"(\d+)\.(\d+)", text)
    return int(match[1]) * 1000 + int(match[2]) if match else None


def _forced(text: str) -> str:
    return next((name for name in ("ring", "tree", "nvls") if text.lower().startswith(name)), "auto")


def _gpus_per_process(header: Mapping[str, str]) -> int:
    for key, pattern in (("command", r"-g (\d+)"), ("mode", r"nGpus (\d+)")):
        if match := re.search(pattern, header.get(key, "")):
            return int(match[1])
    return 1
