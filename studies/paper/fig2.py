"""Figure 2: the time to reduce 60 M parameters in tensors of a size, and when backward has gradients ready."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from ddpsim.report.charts import Axis, Chart
from studies.paper.assumptions import CENTRAL, Settings, ends
from studies.paper.claim import TOLERANCE, Claim, all_of, near
from studies.paper.figure import Answers, Figure, Point, Reproduction
from studies.paper.panels import curve, reported

if TYPE_CHECKING:
    from collections.abc import Generator

    import simpy

    from ddpsim.collectives.calibration import Calibration

MACHINE = "2xgp100-nvlink"
"""Two Quadro GP100 with NVLink, as section 3.2.3 of the paper has them."""

PARAMETERS = 60_000_000
SIZES = (
    1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000,
    1_000_000, 2_000_000, 5_000_000, 10_000_000, 20_000_000,
)  # fmt: skip
"""Parameters a tensor; the text names 500 K and 20 M."""
_FLAT_FROM = 500_000
_BACKWARD_S = 0.25
"""The paper's, about."""
_PAIR_GBPS = 19.73, 21.40
"""What two RTX 2080 Ti with NVLink move at 8 and at 64 MiB, three doublings apart: NVIDIA/nccl-tests issue 44."""
_ITEM = 4
"""Bytes of a float32."""

_STEADY = 400
"""Collectives after which the rest take as long each as those on average: two are in flight at most."""

Backend = Literal["nccl", "gloo"]


@dataclass(frozen=True, slots=True)
class Total:
    """The total is how long it takes to launch allreduces of all parameters and wait for the last, in seconds."""

    backend: Backend
    parameters: int
    settings: Settings = CENTRAL

    def __str__(self) -> str:
        return f"60 M parameters in tensors of {self.parameters:,} by {self.backend}"

    def answer(self) -> float:
        """Return the seconds; the host launches one after the other, which may take longer than they do."""
        from ddpsim.collectives.ddp_priors import DDP_PRIORS
        from studies.paper.setup import constants

        count = PARAMETERS // self.parameters
        shown = min(count, _STEADY)
        calibration = constants(self.backend, 1, self.settings)
        if self.backend == "gloo":
            # The paper gives gloo tensors of the CPU: nothing is staged.
            calibration = calibration.with_values({"gloo.staging.efficiency": 1e9}, source="tensors of the CPU")
        costs = {constant.name: constant.value for constant in DDP_PRIORS[self.backend]}
        launch_s = costs[f"{self.backend}.ddp.launch_s"]
        return _finished_s(self.backend, self.parameters * _ITEM, shown, launch_s, calibration) * count / shown


def _finished_s(backend: Backend, size_bytes: int, count: int, launch_s: float, calibration: Calibration) -> float:
    """Return when the last of `count` allreduces ends that are launched one after the other."""
    import simpy

    from ddpsim.collectives.conditions import CollectiveOptions
    from ddpsim.collectives.execute import Collectives
    from ddpsim.common.operation import Operation
    from ddpsim.topology.spec import load_topology

    env = simpy.Environment()
    made = Collectives(
        env,
        load_topology(MACHINE).place(1, 2),
        backend=backend,
        calibration=calibration,
        options=CollectiveOptions(isolated=False),
    )
    streams = simpy.Resource(env, made.streams_per_group)

    def one() -> Generator[simpy.Event]:
        with streams.request() as stream:
            yield stream
            yield made.run(Operation.ALLREDUCE, size_bytes)

    def host() -> Generator[simpy.Event]:
        running = []
        for _ in range(count):
            yield env.timeout(launch_s)
            running.append(env.process(one()))
        yield env.all_of(running)

    env.run(env.process(host()))
    return float(env.now)


@dataclass(frozen=True, slots=True)
class Backward:
    """Backward of ResNet-152 on a Quadro GP100: when each parameter's gradient is ready."""

    settings: Settings = CENTRAL

    def __str__(self) -> str:
        return f"ResNet-152's backward at batch {self.settings.resnet152_batch}"

    def answer(self) -> dict[str, object]:
        """Return the backward's seconds, and (seconds, millions of parameters ready) by the gradient.

        The shipped file of this step is scaled to the paper's 250 ms; this is the roofline's own.
        """
        from math import prod

        from ddpsim.workload.estimate import ModelShape, estimate
        from ddpsim.workload.files import load_workload
        from ddpsim.workload.gpus import fitted_peaks, gpu_named

        source, gpu = load_workload("resnet152"), gpu_named("GP100")
        assert source.operators is not None
        shape = ModelShape.of(source, source.operators.with_batch(self.settings.resnet152_batch))
        made, by_all = (estimate(shape, each, "fp32") for each in (gpu, replace(gpu, achieved=fitted_peaks(gpu.spec))))
        ready = sorted((float(second), index) for index, second in enumerate(made.gradient_ready_s[0]))
        done, curve = 0, []
        for second, index in ready:
            done += prod(made.parameters[index].shape)
            curve.append([second, done / 1e6])
        found = {"backward_s": float(made.backward.device_s[0]), "by_all_gpus_s": float(by_all.backward.device_s[0])}
        return {**found, "curve": curve}


_BANDS = ("gloo_Bps", "host_Bps")
_BATCHES = [Backward(end) for pair in ends(["resnet152_batch"]) for end in pair]


def _points() -> list[Point]:
    central: list[Point] = [Total(backend, size) for backend in ("nccl", "gloo") for size in SIZES]
    moved = [Total("gloo", size, end) for size in SIZES for pair in ends(_BANDS) for end in pair]
    return [*central, *moved, Backward(), *_BATCHES]


def _reproduce(answers: Answers) -> Reproduction:
    totals = {backend: [answers[Total(backend, size)] for size in SIZES] for backend in ("nccl", "gloo")}
    moved = [[answers[Total("gloo", size, end)] for pair in ends(_BANDS) for end in pair] for size in SIZES]
    band = [min(each) for each in moved], [max(each) for each in moved]
    backward = answers[Backward()]
    seconds, ready = zip(*backward["curve"], strict=True)
    x, y = Axis("parameters a tensor", scale="log"), Axis("total time", "s", scale="log")
    gloo = curve("simulated, with its band", SIZES, totals["gloo"], band)
    simulated, paper = curve("simulated", ready, seconds), reported("the paper's, about", 60, _BACKWARD_S)
    since = Axis("time since backward began", "s", low=0)
    panels = [
        Chart("NCCL, two GP100 by NVLink", x, y, (curve("simulated", SIZES, totals["nccl"]),)),
        Chart("Gloo, tensors of the CPU", x, y, (gloo,)),
        Chart("ResNet-152 backward on a GP100", Axis("ready parameters", "M"), since, (simulated, paper)),
    ]
    return Reproduction(panels, [_falls(totals), _backward(answers)])


def _saturated_at(totals: list[float]) -> int:
    """Return the smallest size whose total is within the tolerance of the least."""
    return next(size for size, each in zip(SIZES, totals, strict=True) if each <= (1 + TOLERANCE) * min(totals))


def _falls(totals: dict[str, list[float]]) -> Claim:
    to_flat = SIZES.index(_FLAT_FROM) + 1
    falling = totals["nccl"], totals["gloo"][:to_flat]
    falls = all(after < before for each in falling for before, after in pairwise(each))
    nccl, gloo = (_saturated_at(totals[backend]) for backend in ("nccl", "gloo"))
    *_, fifth, half, last = totals["nccl"]
    flat = [each / min(totals["gloo"]) - 1 for each in totals["gloo"][to_flat - 1 :]]
    return Claim(
        1,
        "fig2",
        "total falls with size; gloo is flat beyond 500 K parameters a tensor, NCCL by NVLink not saturated at 20 M",
        f"{'falls' if falls else 'does not fall'}; within 15 % of the least from {gloo:,} (gloo), {nccl:,} (NCCL)",
        None,
        all_of([falls, gloo == _FLAT_FROM, max(flat) <= TOLERANCE, nccl == SIZES[-1]]),
        " ".join([_of_gloo(flat), _of_nccl(nccl, 1 - half / fifth, 1 - last / half)]),
    )


def _of_gloo(flat: list[float]) -> str:
    """Return how gloo goes on from 500 K, by how much longer than its least each size takes."""
    beyond = [size for size, more in zip(SIZES[-len(flat) :], flat, strict=True) if more > TOLERANCE]
    if not beyond:
        return f"Gloo is within {max(flat):.0%} of its least from 500 K on."
    told = f"Gloo takes up to {max(flat):.0%} longer than its least from 500 K on, at {_tensors(beyond)} a tensor."
    few = " Three tensors of 20 M share two threads." if beyond == [SIZES[-1]] else ""
    return told + few


def _tensors(sizes: list[int]) -> str:
    return ", ".join(f"{size:,}" for size in sizes)


def _of_nccl(saturated: int, to_half: float, to_last: float) -> str:
    """Return where NCCL's total stops falling, and by which part it still falls at the end."""
    measured = 1 - (_PAIR_GBPS[0] / _PAIR_GBPS[1]) ** (1 / 3)
    told = (
        f"NCCL's total falls by {to_half:.1%} from 5 M to 10 M a tensor and by {to_last:.1%} from 10 M to 20 M; two "
        f"RTX 2080 Ti with NVLink were measured to fall by {measured:.1%} a doubling between 8 and 64 MiB "
        "(NVIDIA/nccl-tests issue 44)."
    )
    early = " A start of tens of microseconds is little beside what four NVLinks carry of so much."
    return told + (early if saturated < SIZES[-1] else "")


def _backward(answers: Answers) -> Claim:
    backward_s, other_s = (answers[Backward()][name] for name in ("backward_s", "by_all_gpus_s"))
    low, *_, high = sorted(answers[point]["backward_s"] for point in (*_BATCHES, Backward()))
    nccl = [answers[Total("nccl", size)] for size in SIZES]
    return Claim(
        2,
        "fig2",
        "backward of ResNet-152 takes about 250 ms (the order of NCCL's total is not judged)",
        f"{backward_s * 1e3:.0f} ms ({low * 1e3:.0f} to {high * 1e3:.0f})",
        None,
        near(backward_s, _BACKWARD_S),
        f"Estimated from the step's operators at batch {CENTRAL.resnet152_batch}, which is assumed, with the shares of "
        "peak that a V100 reaches and without the factor by which the shipped file is scaled to this figure; shares "
        f"fitted to all GPUs would say {other_s * 1e3:.0f} ms, {other_s / _BACKWARD_S - 1:+.0%} beside the paper. "
        f"NCCL's total is {min(nccl) * 1e3:.1f} to {max(nccl) * 1e3:.0f} ms by size: any backward is of its order, so "
        "that this half says nothing.",
    )


FIGURE = Figure("fig2", "Figure 2: reducing 60 M parameters, and backward", _points, _reproduce)
