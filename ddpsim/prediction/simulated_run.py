"""The simulation that a prediction rests on: what is replayed, where, and for how many iterations."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ddpsim.collectives.calibration import Calibration
from ddpsim.errors import InputError
from ddpsim.simulation import Options, simulate
from ddpsim.simulation.engine import WARM_UP, Simulated
from ddpsim.simulation.run import Progress
from ddpsim.topology.graph import Cluster, Placement
from ddpsim.topology.placement import place
from ddpsim.workload import Workload
from ddpsim.workload.compiled import spread_out
from ddpsim.workload.files import load_workload
from ddpsim.workload.single_clock import single_clock
from ddpsim.workload.update import with_optimizer

_SETTLED = 1
"""Iterations after which those that are all alike repeat, to rounding."""


@dataclass(slots=True, eq=False)
class SimulatedRun:
    """A simulated run is made when its trace is first asked for; made again, its trace is the same.

    Attributes:
        workload: as the machine's nodes replay it.
        placement: the ranks that take part, and where.
        options: as they were asked for.
        calibration: constants in force; None is the priors.
        brief: whether to simulate no more iterations than tell the period, where all are alike.
    """

    workload: Workload
    placement: Placement
    options: Options
    calibration: Calibration | None = None
    brief: bool = False
    _trace: Simulated | None = field(init=False, default=None)

    def __repr__(self) -> str:
        return f"<SimulatedRun: {self.workload.name}, {self.placement!r}>"

    @classmethod
    def of(
        cls,
        workload: Workload,
        topology: Cluster,
        nodes: int | None,
        gpus_per_node: int | None,
        options: Options,
        calibration: Calibration | None,
        *,
        brief: bool,
    ) -> SimulatedRun:
        """Return the run of a workload on the first GPUs of a machine's first nodes.

        Raises:
            InputError: as `place`, for a CPU's workload on GPUs, and for unlike ranks that go on without each other.
        """
        placement = place(topology, nodes, gpus_per_node)
        _refuse_many_periods(placement, options)
        return cls(replayed_on(topology, workload, options), placement, options, calibration, brief)

    def traced_path(self) -> Simulated:
        """Return a trace with its longest path; of a brief run another is simulated for that."""
        return self.trace() if not self.brief else self._simulated(path=True, whole=False)

    def trace(self, progress: Progress | None = None) -> Simulated:
        """Return the trace; `progress` is as that of `simulate`, which is called where there is none yet.

        Raises:
            InputError: as `simulate`.
        """
        if self._trace is None:
            self._trace = self._simulated(path=not self.brief, progress=progress)
        return self._trace

    def _simulated(self, *, path: bool, whole: bool = True, progress: Progress | None = None) -> Simulated:
        run, warm_up = in_brief(self.options, self.workload) if self.brief else (self.options, WARM_UP)
        return simulate(
            self.workload,
            self.placement,
            run,
            self.calibration,
            workloads=workloads_on(self.placement, self.options),
            progress=progress,
            warm_up=warm_up,
            whole=whole,
            path=path,
        )


def in_brief(options: Options, workload: Workload) -> tuple[Options, int]:
    """Return options and warm-up that tell the period alone: of iterations that are all alike one, once settled."""
    alike = options.iterations is None and options.order is None and options.iterations_of(workload) == 2
    return (replace(options, iterations=1), _SETTLED) if alike else (options, WARM_UP)


def _refuse_many_periods(placement: Placement, options: Options) -> None:
    """Refuse unlike ranks that go on without each other: each has a period of its own, and a prediction has one.

    Raises:
        InputError: it names what makes them unlike.
    """
    if not options.asynchronous:
        return
    unlike = {
        "stragglers": bool(options.stragglers),
        "straggling": options.straggling is not None,
        "jitter": options.jitter > 0,
        "topology": any(each.template.workload is not None for each in placement.classes),
    }
    for name, given in unlike.items():
        if given:
            what = f"ranks of `scheme={options.scheme}` go on without each other, each with a step of its own length"
            remedy = f"leave `{name}` out, or use the synchronous parameter-server"
            if name == "topology":
                remedy = "use a machine whose nodes are all alike, or the synchronous parameter-server"
            raise InputError(f"{what} where they are unlike, which no one step says", place=name, remedy=remedy)


def workloads_on(placement: Placement, options: Options) -> dict[str, Workload]:
    """Return by name the workloads of node templates that have their own."""
    named = sorted({c.template.workload for c in placement.classes if c.template.workload is not None})
    return {name: replayed_on(placement.topology, load_workload(name), options) for name in named}


def replayed_on(topology: Cluster, workload: Workload, options: Options) -> Workload:
    """Return `workload` as a topology's nodes replay it: with the optimizer asked for, by timed layers without GPUs.

    Raises:
        InputError: a CPU's on nodes with GPUs, without a backend: it has no pace that a GPU could keep.
    """
    workload = with_optimizer(workload, options.optimizer, clipping=options.clip_gradients)
    if options.compiled:
        workload = spread_out(workload)
    if topology.compute_device == "cpu":
        return workload if workload.on_cpu else single_clock(workload)
    if workload.on_cpu and options.backend is None:
        raise InputError(
            f"{workload.name} was recorded on a CPU, {topology.name} has GPUs ({topology.compute_device})",
            place="workload",
            remedy=(
                "estimate the step on that GPU (`python -m ddpexec estimate --step ... --gpu ...`), carry a capture "
                "to it (`... --from capture.json --gpu ...`), or say `backend=gloo` to train on its CPUs"
            ),
        )
    return workload
