"""Runs collectives on the network: closed, as one fluid flow, or step by step, behind one interface."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import simpy

from ddpsim.collectives.calibration import Calibration, Constant, Curve
from ddpsim.collectives.curve import CurveTransport, matching
from ddpsim.collectives.gloo import transport as gloo
from ddpsim.collectives.gloo.transport import GlooTransport
from ddpsim.collectives.gloo.ways import GlooWays
from ddpsim.collectives.nccl import transport as nccl
from ddpsim.collectives.nccl import versions as nccl_versions
from ddpsim.collectives.nccl.layout import Layout
from ddpsim.collectives.nccl.transport import NcclTransport
from ddpsim.collectives.nccl.ways import NcclWays
from ddpsim.collectives.patterns import PATTERNS, PatternTransport
from ddpsim.collectives.rank_ways import RankWays
from ddpsim.collectives.routes import Wiring
from ddpsim.collectives.scaled import ScaledTransport
from ddpsim.collectives.steps import carry_out
from ddpsim.collectives.transport import Choice, Transport, alone_s
from ddpsim.errors import CalibrationError, InputError, UnknownNameError
from ddpsim.network.fluid import Demand, Network
from ddpsim.topology.graph import Placement

PRIORS: Mapping[str, tuple[Constant, ...]] = {"gloo": gloo.PRIORS, "nccl": nccl.PRIORS}
"""The constants of each backend without measurements."""
BACKENDS = ("nccl", "gloo")
FIDELITIES = ("flow", "steps", "closed")


def make_transport(
    placement: Placement,
    backend: str,
    calibration: Calibration | None = None,
    *,
    algorithm: str = "auto",
    isolated: bool = True,
    gpus_per_process: int = 1,
    expand: bool = False,
) -> Transport:
    """Return the transport `backend` on `placement`.

    Args:
        calibration: constants; the priors where None.
        algorithm: `auto` for the backend's own choice.
        isolated: one collective at a time on an idle stream, as DDP issues them, or back to back as in nccl-tests.
        gpus_per_process: GPUs that one process launches NCCL's kernels on, one after the other.
        expand: whether every node has links of its own, instead of one node standing for all of its kind.

    Raises:
        UnknownNameError: a backend or algorithm that is not modelled.
        CalibrationError: a calibration of another backend.
    """
    if calibration is not None and calibration.backend != backend:
        raise CalibrationError(
            f"the calibration is of {calibration.backend}, the process group is {backend}",
            remedy=f"calibrate from {backend} measurements",
        )
    curve = correcting_curve(placement, backend, calibration, algorithm)
    alone = isolated and curve is None
    transport = _physical(placement, backend, calibration, algorithm, alone, gpus_per_process, expand)
    if curve is None:
        return transport
    start_s = transport.calibration["nccl.isolated_s"] if isolated and backend == "nccl" else 0.0
    measured = transport
    if curve.gpus_per_process != gpus_per_process:
        measured = _physical(placement, backend, calibration, algorithm, False, curve.gpus_per_process, expand)
    return CurveTransport.over(transport, curve, start_s, measured)


def correcting_curve(
    placement: Placement, backend: str, calibration: Calibration | None, algorithm: str = "auto"
) -> Curve | None:
    """Return the measured rows of exactly this machine and rank count, by which allreduce times are corrected.

    Rows correct the algorithm they were measured by: the one forced, or the backend's own choice, which for gloo is the
    ring.
    """
    own = (backend, algorithm) == ("gloo", "ring")
    return matching(calibration, placement, "auto" if own else algorithm)


def _physical(
    placement: Placement,
    backend: str,
    calibration: Calibration | None,
    algorithm: str,
    isolated: bool,
    gpus_per_process: int,
    expand: bool,
) -> Transport:
    if backend == "nccl" and placement.topology.compute_device == "cpu":
        raise InputError("NCCL needs GPUs", place="--backend", remedy="use gloo")
    if backend in PRIORS and algorithm in PATTERNS:
        return PatternTransport(placement, _ways(placement, backend, calibration), algorithm)
    if backend == "gloo":
        return GlooTransport(placement, calibration, algorithm=algorithm, expand=expand)
    if backend == "nccl":
        version = calibration["nccl.version"] if calibration else nccl_versions.CURRENT
        return NcclTransport(
            Layout(placement, int(version), expand=expand),
            calibration,
            algorithm=algorithm,
            isolated=isolated,
            gpus_per_process=gpus_per_process,
        )
    if backend == "mpi":
        raise InputError("no MPI transport is modelled", place="--backend", remedy="use nccl or gloo")
    raise UnknownNameError.among("backend", backend, BACKENDS, place="--backend")


def _ways(placement: Placement, backend: str, calibration: Calibration | None) -> RankWays:
    constants = calibration or Calibration(backend, {constant.name: constant for constant in PRIORS[backend]})
    if backend == "gloo":
        return GlooWays(Wiring(placement, expand=True), constants)
    return NcclWays(placement, constants)


class Collectives:
    """The collectives of one process group on a placement; all ranks have arrived when one is called.

    Args:
        env: the SimPy environment; one of its own where None, for `estimate_s`.
        fidelity: `flow` for one fluid demand a collective, `steps` for every transfer of an allreduce's schedule (a
            broadcast stays one fluid demand), `closed` for the time it takes alone, whatever else is in flight.
        gpus_per_process: GPUs that one process launches NCCL's kernels on, one after the other.
        network: one to share with other process groups; built from the transport's links where None.
        factor: on the time of a collective of a size: an end of a band.

    Raises:
        UnknownNameError: an unknown backend, algorithm or fidelity.
    """

    def __init__(
        self,
        env: simpy.Environment | None,
        placement: Placement,
        *,
        backend: str,
        calibration: Calibration | None = None,
        algorithm: str = "auto",
        fidelity: str = "flow",
        isolated: bool = True,
        gpus_per_process: int = 1,
        network: Network | None = None,
        expand: bool = False,
        factor: Callable[[int], float] | None = None,
    ) -> None:
        if fidelity not in FIDELITIES:
            raise UnknownNameError.among("fidelity", fidelity, FIDELITIES, place="--fidelity")
        transport = make_transport(
            placement,
            backend,
            calibration,
            algorithm=algorithm,
            isolated=isolated,
            gpus_per_process=gpus_per_process,
            expand=expand,
        )
        self.transport = transport if factor is None else ScaledTransport(transport, factor)
        self.env = simpy.Environment() if env is None else env
        self.network = network or Network(self.env, self.transport.capacities)
        self._fidelity = fidelity

    @property
    def calibration(self) -> Calibration:
        """Return the constants in force, priors or fitted."""
        return self.transport.calibration

    @property
    def streams_per_group(self) -> int:
        """Return how many collectives a process group has in flight: 1 for nccl, 2 for gloo."""
        return self.transport.streams_per_group

    def choice(self, size_bytes: int) -> Choice:
        """Return algorithm, protocol and channels of an allreduce of `size_bytes`."""
        return self.transport.choice(size_bytes)

    def allreduce(self, size_bytes: int, group: int = 0) -> simpy.Event:
        """Start an allreduce; the event succeeds when the sum is everywhere.

        Process groups, numbered by `group`, have connections of their own.
        """
        if self._fidelity == "steps":
            return carry_out(self.network, self.transport.steps(size_bytes))
        demand = self.transport.allreduce(size_bytes)
        return self._run(demand if demand.queue is None else replace(demand, queue=(demand.queue, group)))

    def broadcast(self, size_bytes: int) -> simpy.Event:
        """Start a broadcast from rank 0; the event succeeds when the bytes are everywhere."""
        return self._run(self.transport.broadcast(size_bytes))

    def estimate_s(self, size_bytes: int) -> float:
        """Return the time of an allreduce that shares no link with anything."""
        return self.transport.allreduce_s(size_bytes)

    def simulate_s(self, size_bytes: int) -> float:
        """Return the time of one allreduce run in this environment from now, at this fidelity."""
        start_s = self.env.now
        self.env.run(self.allreduce(size_bytes))
        return float(self.env.now - start_s)

    def _run(self, demand: Demand) -> simpy.Event:
        if self._fidelity == "closed":
            return simpy.Timeout(self.env, alone_s(demand, self.transport.capacities))
        return self.network.transfer(demand)
