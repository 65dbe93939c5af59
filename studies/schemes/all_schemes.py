"""All schemes side by side on four machines and three models.

python -m studies.schemes --out studies/schemes     # the pages and the plot
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ddpsim.common.units import GIB, MIB
from ddpsim.prediction.predict import predict
from ddpsim.prediction.prediction import Prediction
from ddpsim.report.charts import Axis, Chart, ChartLine, ChartPoint, categories
from ddpsim.report.plots import PictureLayout, save_charts
from ddpsim.schedules.message import WORLD
from ddpsim.schedules.schedule import Schedule
from ddpsim.simulation.job import Job
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.topology.spec import load_topology
from ddpsim.workload.files import load_workload

ROOT = Path(__file__).resolve().parents[2]
TARGET = Path(__file__).with_name("schemes-compared.md")
TEMPLATE = Path(__file__).with_name("schemes-compared.md.in")

MACHINES = {
    "dgx-1v": (2, "@v100-fp32-b32"),
    "p3.8xlarge": (4, "@v100-fp32-b32"),
    "4xrtx4090": (1, "@gtx1080ti-fp32-b32"),
    "dgx-a100": (2, "@a100-amp-b32"),
}
"""Nodes, and the estimate whose pace is taken: NVLink and InfiniBand; 10 Gbit/s Ethernet; PCIe alone; NVSwitch.

No step of an RTX 4090 is shipped: its machine's links are there with the pace of a GTX 1080 Ti.
"""
MODELS = ("resnet50", "vgg16", "bert-base")

SCHEMES = {
    "ddp": "-",
    "naive": "-",
    "flat": "-",
    "priority:4MiB": "-",
    "priority:4MiB,credit=16MiB": "-",
    "dear": "-",
    "zero1": "an optimizer that looks at a parameter's shape",
    "fsdp2": "all of a layer's parameters on each rank",
    "horovod": "-",
    "multiworker-mirrored": "overlap",
    "parameter-server": "a rank to serve",
    "parameter-server:async": "equality of weights and order of updates; a rank to serve",
    "averaging:8": "equality of weights in between, one process's trajectory",
    "slowmo:8": "equality of weights in between, one process's trajectory; two copies of the parameters",
    "local-sgd:8": "equality of weights across nodes in between, one process's trajectory",
    "gradientflow": "nine tenths of each gradient until later; a copy of the gradients",
}
"""Each scheme, and what it gives up for its speed beside DDP, whose weights are one process's on the joined batch."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A scheme on a machine with a model."""

    scheme: str
    machine: str
    model: str

    @property
    def workload(self) -> str:
        """The estimate that is trained."""
        pace = MACHINES[self.machine][1]
        return self.model + pace

    def prediction(self) -> Prediction:
        """Return the prediction, without its band."""
        return _predicted(self)


@cache
def _predicted(cell: Cell) -> Prediction:
    nodes, _ = MACHINES[cell.machine]
    return predict(
        Job(
            load_workload(cell.workload), load_topology(cell.machine), nodes=nodes, options=Options(scheme=cell.scheme)
        ),
        band=False,
    )


def sent_bytes(schedule: Schedule, ranks: int) -> float:
    """Return the bytes that a training rank sends and receives in a step in the mean, half of both together."""
    total = 0.0
    for message in schedule:
        group = ranks if message.group == WORLD else schedule.groups[message.group]
        total += message.op.sent(group) * message.size_bytes / message.every / (2 if schedule.sharding.servers else 1)
    return total


def schedule_of(found: Prediction) -> Schedule:
    """Return the schedule of a prediction: DDP's as such where nothing took its place."""
    from ddpsim.schedules.named import scheme_named
    from ddpsim.schedules.setup import SchemeInputs

    if found.run is not None and (schedule := found.run.trace().schedule) is not None:
        return schedule
    setup = SchemeInputs(
        parameters=found.workload.parameters, buckets=found.plan.groups(), world_size=found.summary.world_size
    )
    return scheme_named("ddp").schedule(setup)


def rows(machine: str, model: str, schemes: Sequence[str]) -> Iterator[tuple[str, float, float, float, float, float]]:
    """Yield of each scheme its step in ms, samples a second over DDP's, MiB sent, exposed ms and GiB of memory."""
    default = Cell("ddp", machine, model).prediction().samples_per_s
    for scheme in schemes:
        found = Cell(scheme, machine, model).prediction()
        sent = sent_bytes(schedule_of(found), found.summary.world_size)
        memory = 0.0 if found.memory is None else found.memory.step_bytes / GIB
        faster = found.samples_per_s / default
        yield scheme, found.iteration_s * 1e3, faster, sent / MIB, found.summary.exposed_comm_s * 1e3, memory


def page() -> str:
    """Return the page."""
    parts = []
    for machine, (nodes, _) in MACHINES.items():
        ranks = Cell("ddp", machine, MODELS[0]).prediction().summary.world_size
        for model in MODELS:
            name = Cell("ddp", machine, model).workload
            parts += [f"\n## {name} on {machine}, {nodes} nodes, {ranks} ranks\n" if nodes > 1 else
                      f"\n## {name} on {machine}, one node, {ranks} ranks\n"]  # fmt: skip
            parts.append("| scheme | step ms | samples/s beside DDP's | MiB sent | exposed ms | memory GiB |")
            parts.append("|---|--:|--:|--:|--:|--:|")
            for scheme, step_ms, faster, sent, exposed, memory in rows(machine, model, list(SCHEMES)):
                parts.append(
                    f"| `{scheme}` | {step_ms:,.1f} | {faster:.2f} | {sent:,.1f} | {exposed:,.1f} | {memory:.1f} |"
                )
    given_up = "\n".join(f"| `{scheme}` | {what} |" for scheme, what in SCHEMES.items())
    return TEMPLATE.read_text().replace("{given_up}", given_up).replace("{tables}", "\n".join(parts).strip())


def draw(path: Path) -> None:
    """Draw samples a second of each scheme beside DDP's: a row a scheme, a panel a machine, a mark a model."""
    save_charts([_chart(machine, nodes) for machine, (nodes, _) in MACHINES.items()], path, _LAYOUT)


_LAYOUT = PictureLayout(3.6, 5.4, columns=4, share_y=True)


def _chart(machine: str, nodes: int) -> Chart:
    names = list(SCHEMES)[::-1]
    lines = []
    for model in MODELS:
        values = [faster for _, _, faster, *_ in rows(machine, model, names)]
        lines.append(ChartLine(model, tuple(ChartPoint(x, y) for y, x in enumerate(values)), "dots"))
    x = Axis("samples a second beside DDP's", scale="log2", level=1.0)
    title = f"{machine}, {nodes} nodes" if nodes > 1 else machine
    return Chart(title, x, Axis("", ticks=categories(names)), tuple(lines))
