"""Runs collectives on the network: closed, as one fluid flow, or step by step, behind one interface.

`make_transport` is how a transport comes about: the library of the machine, a pattern or the library's own algorithm,
and measured rows on top. `Collectives` runs what it says, at a fidelity, on a network that others may share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from dataclasses import replace
from functools import lru_cache
from typing import get_args

import simpy

from ddpsim.collectives.calibration import Calibration, Curve
from ddpsim.collectives.conditions import DEFAULT, GPU_BACKENDS, Backend, CollectiveOptions
from ddpsim.collectives.curve import Correction, CurveTransport, find_curve, find_curves
from ddpsim.collectives.nccl.layout import Layout, join_by_nvlink
from ddpsim.collectives.nccl.transport import NcclPaths, NcclTransport
from ddpsim.collectives.network.fairness import alone_s
from ddpsim.collectives.network.fluid import Network
from ddpsim.collectives.patterns import PatternTransport, is_pattern
from ddpsim.collectives.routes import PlacementLinks
from ddpsim.collectives.scaled import ScaledTransport
from ddpsim.collectives.schedules import refuse_too_many
from ddpsim.collectives.steps import carry_out
from ddpsim.collectives.transport import AlgorithmChoice, RankPaths, Transport
from ddpsim.common.errors import CalibrationError, InputError, UnknownNameError
from ddpsim.common.operation import Operation
from ddpsim.topology.graph import Placement
from ddpsim.topology.hardware import gcn_of

BACKENDS: tuple[Backend, ...] = get_args(Backend)


def make_transport(
    placement: Placement,
    backend: str,
    calibration: Calibration | None = None,
    options: CollectiveOptions = DEFAULT,
) -> Transport:
    """Return the transport `backend` on `placement`.

    Rows of exactly this machine correct the model. They were measured back to back, so it is modelled so and
    `nccl.isolated_s` comes on top; where they were measured with 8 GPUs a process and `options` says 1, a time is
    theirs times what the model says of 1 over what it says of 8.

    Args:
        calibration: constants; the priors where None.

    Raises:
        UnknownNameError: a backend or algorithm that is not modelled.
        CalibrationError: a calibration of another backend.
    """
    backend = library_of(placement, backend)
    if calibration is not None and calibration.backend != backend:
        raise CalibrationError(
            f"the calibration is of {calibration.backend}, the process group is {backend}",
            remedy=f"calibrate from {backend} measurements",
        )
    curves = list[Curve]()
    if calibration is not None and calibration.curves:
        curves = find_curves(calibration, placement, _find_measured_algorithm(backend, options.algorithm))
    if not curves:
        return _physical(placement, backend, calibration, options)
    together = replace(options, isolated=False)
    transport = _physical(placement, backend, calibration, together)

    def measured(curve: Curve) -> Transport:
        if curve.gpus_per_process == options.gpus_per_process:
            return transport
        as_measured = replace(together, gpus_per_process=curve.gpus_per_process)
        return _physical(placement, backend, calibration, as_measured)

    start_s = transport.calibration[f"{backend}.isolated_s"] if options.isolated and backend in GPU_BACKENDS else 0.0
    return CurveTransport(transport, tuple(Correction.of(curve, measured(curve)) for curve in curves), start_s)


def find_correcting_curve(
    placement: Placement,
    backend: str,
    calibration: Calibration | None,
    algorithm: str = "auto",
    operation: Operation = Operation.ALLREDUCE,
) -> Curve | None:
    """Return the measured rows of exactly this machine and rank count, by which an operation's times are corrected."""
    return find_curve(calibration, placement, _find_measured_algorithm(backend, algorithm), operation)


def _find_measured_algorithm(backend: str, algorithm: str) -> str:
    """Return by which algorithm rows correct `algorithm`: the one forced, or the backend's own, which for gloo is the
    ring."""
    return "auto" if (backend, algorithm) == ("gloo", "ring") else algorithm


def library_of(placement: Placement, backend: str) -> str:
    """Return the library that a backend is on a placement: `nccl` is RCCL on AMD's GPUs, as in torch.

    Raises:
        InputError: RCCL on other GPUs, or nodes of both vendors.
    """
    if backend not in GPU_BACKENDS:
        return backend
    amd = {bool(gcn_of(gpu.model)) for each in placement.classes for gpu in each.template.gpus[:1]}
    if amd == {True}:
        return "rccl"
    what, remedy = "nodes of AMD's GPUs and of others have no library in common", "use gloo"
    if amd == {False}:
        if backend != "rccl":
            return backend
        machine = placement.topology
        what = f"RCCL needs AMD's GPUs, {machine.name} has {machine.compute_device}"
        remedy = f"use {machine.backend}, or leave it out"
    raise InputError(what, place="backend", remedy=remedy)


def _physical(
    placement: Placement, backend: str, calibration: Calibration | None, options: CollectiveOptions
) -> Transport:
    """Return the transport as the constants have it, whatever rows there are of this machine."""
    if backend in GPU_BACKENDS and placement.topology.compute_device == "cpu":
        raise InputError(f"{backend.upper()} needs GPUs", place="backend", remedy="use gloo")
    if backend in BACKENDS and options.algorithm != DEFAULT.algorithm and is_pattern(options.algorithm):
        return PatternTransport(placement, find_rank_paths(placement, backend, calibration), options.algorithm)
    if backend == "gloo":
        from ddpsim.collectives.gloo.transport import GlooTransport

        return GlooTransport(placement, calibration, options)
    if backend in GPU_BACKENDS:
        version = (calibration or Calibration.priors(backend))[f"{backend}.version"]
        return NcclTransport(layout_of(placement, int(version), expand=options.expand), calibration, options)
    if backend == "mpi":
        from ddpsim.collectives.mpi.transport import MpiTransport

        return MpiTransport(placement, calibration, options)
    raise UnknownNameError.among("backend", backend, BACKENDS, place="backend")


@lru_cache(maxsize=64)
def layout_of(placement: Placement, version: int, *, expand: bool) -> Layout:
    """Return NCCL's channels on a placement: runs for the ends of a band, and those of several plans, share them."""
    return Layout(placement, version, expand=expand)


def find_rank_paths(placement: Placement, backend: str, calibration: Calibration | None) -> RankPaths:
    """Return the ways between any two ranks of a placement over a backend."""
    constants = calibration or Calibration.priors(library_of(placement, backend))
    if backend == "gloo":
        from ddpsim.collectives.gloo.transport import GlooPaths

        return GlooPaths(PlacementLinks(placement, expand=True), constants)
    if backend == "mpi":
        from ddpsim.collectives.mpi.transport import MpiPaths

        return MpiPaths(PlacementLinks(placement, expand=True), constants)
    return NcclPaths(join_by_nvlink(placement, int(constants[f"{constants.backend}.version"])), constants)


def scale_transport(
    transport: Transport, factor: Callable[[int], float] | None = None, latency: float = 1.0
) -> Transport:
    """Return a transport whose collectives take longer: an end of a band.

    Args:
        transport: as it is.
        factor: on the time of a collective of a size; None is 1.
        latency: factor on the time in which no bytes are on links.
    """
    return transport if factor is None and latency == 1 else ScaledTransport(transport, factor or _keep_time, latency)


def _keep_time(size_bytes: int) -> float:
    return 1.0


class Collectives:
    """The collectives of one process group on a placement; all ranks have arrived when one is called.

    Args:
        env: the SimPy environment; one of its own where None, for `estimate_s`.
        calibration: constants; the priors where None.
        network: one to share with other process groups; built from the transport's links where None.

    Raises:
        UnknownNameError: an unknown backend or algorithm.
    """

    def __init__(
        self,
        env: simpy.Environment | None,
        placement: Placement,
        *,
        backend: str,
        calibration: Calibration | None = None,
        options: CollectiveOptions = DEFAULT,
        network: Network | None = None,
    ) -> None:
        self._begin(env, make_transport(placement, backend, calibration, options), options.fidelity, network)

    @classmethod
    def over(
        cls,
        transport: Transport,
        env: simpy.Environment | None,
        *,
        fidelity: str = DEFAULT.fidelity,
        network: Network | None = None,
        sender: Hashable = None,
    ) -> Collectives:
        """Return the collectives of a transport that is there already.

        Args:
            transport: of `make_transport`, or one that scales its times.
            env: the SimPy environment; one of its own where None.
            fidelity: how exact the network is.
            network: one to share; built from the transport's links where None.
            sender: whose messages these are on a network that several jobs share.
        """
        collectives = cls.__new__(cls)
        collectives._begin(env, transport, fidelity, network, sender)
        return collectives

    def _begin(
        self,
        env: simpy.Environment | None,
        transport: Transport,
        fidelity: str,
        network: Network | None,
        sender: Hashable = None,
    ) -> None:
        self.transport, self.sender, self._fidelity = transport, sender, fidelity
        self.env = simpy.Environment() if env is None else env
        self.network = network or Network(self.env, transport.capacities)
        self.network.add(transport.capacities)

    @property
    def calibration(self) -> Calibration:
        """Return the constants in force, priors or fitted."""
        return self.transport.calibration

    @property
    def streams_per_group(self) -> int:
        """Return how many collectives a process group has in flight: 1 for nccl and mpi, 2 for gloo."""
        return self.transport.streams_per_group

    @property
    def sends_in_line(self) -> bool:
        """Whether messages of a pattern are sends one behind the other, as the network then has them: gloo's."""
        return self.transport.backend == "gloo" and self._fidelity == "flow"

    def choice(self, size_bytes: int, operation: Operation = Operation.ALLREDUCE) -> AlgorithmChoice:
        """Return algorithm, protocol and channels of an operation of `size_bytes`."""
        return self.transport.choice(size_bytes, operation)

    def run(self, operation: Operation, size_bytes: int, group: int = 0) -> simpy.Event:
        """Start an operation; the event succeeds when every rank has what it gets.

        Process groups, numbered by `group`, have connections of their own.
        """
        if self._fidelity == "steps":
            return carry_out(self.network, self.transport.steps(operation, size_bytes))
        demand = self.transport.demand(operation, size_bytes)
        if self._fidelity == "closed":
            return simpy.Timeout(self.env, alone_s(demand, self.transport.capacities))
        own = demand if demand.queue is None else replace(demand, queue=(demand.queue, group, self.sender))
        return self.network.transfer(own, self.sender)

    def allreduce(self, size_bytes: int, group: int = 0) -> simpy.Event:
        """Start an allreduce; the event succeeds when the sum is everywhere."""
        return self.run(Operation.ALLREDUCE, size_bytes, group)

    def check_extent(self, messages: Iterable[tuple[Operation, int]], times: int) -> None:
        """Refuse operations of these sizes, each so many times, where they are more single transfers than bearable.

        Raises:
            InputError: at the fidelity of `steps`, above `MOST_TRANSFERS` in all.
        """
        if self._fidelity != "steps":
            return
        transfers = 0
        for (operation, size_bytes), count in Counter(messages).items():
            transfers += self.transport.transfers(operation, size_bytes) * times * count
            refuse_too_many(transfers, "the run's collectives have at least")

    def broadcast(self, size_bytes: int) -> simpy.Event:
        """Start a broadcast from rank 0; the event succeeds when the bytes are everywhere."""
        return self.run(Operation.BROADCAST, size_bytes)

    def estimate_s(self, size_bytes: int, operation: Operation = Operation.ALLREDUCE) -> float:
        """Return the time of an operation that shares no link with anything."""
        return self.transport.time_s(operation, size_bytes)

    def simulate_s(self, size_bytes: int, operation: Operation = Operation.ALLREDUCE) -> float:
        """Return the time of one operation run in this environment from now, at this fidelity."""
        start_s = self.env.now
        self.env.run(self.run(operation, size_bytes))
        return float(self.env.now - start_s)
