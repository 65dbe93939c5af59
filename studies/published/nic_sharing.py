"""Nodes of four A100 and one NIC: allreduce over each transport, and five layouts of one job, beside predictions.

Nothing is fitted to this page. `python -m studies.published.nic_sharing` prints both tables. What the page leaves open
is assumed by name, and both readings are shown:

- the dtype of the gradients: the page says bfloat16, and its steps move as many bytes as float32;
- which two cards of a node the job of 2 x 2 got: its log has two equal channels, and trees for a message of 1.3 GiB.
  NCCL's model says so of the two cards on the socket without the NIC, and of no others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from statistics import median

from ddpsim.collectives.calibration import Calibration, Curve, CurvePoint
from ddpsim.collectives.conditions import CollectiveOptions
from ddpsim.collectives.execute import make_transport
from ddpsim.prediction.doubts.collectives import factors
from ddpsim.prediction.predict import predict
from ddpsim.simulation.job import Job
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.topology.cluster import Topology
from ddpsim.topology.declared import NodeGroup
from ddpsim.topology.node import NodeTemplate
from ddpsim.topology.placement import Placement
from ddpsim.workload import Workload
from studies.accuracy.systems import machine
from studies.command import parser
from studies.published.gpu_systems import Row, cases, rows_of, step_s, system_named, workload

_SYSTEM = system_named("baskerville")
DTYPES = _SYSTEM.dtypes
FAR = (2, 3)
"""GPUs on the socket without the NIC, in `machines/baskerville.yaml`."""
MESSAGE_BYTES = 708_000_000 * 2
"""Of the page's allreduce: the default tensor of its bench_allreduce.py, in bfloat16."""
BUCKET_BYTES = 25 << 20


@dataclass(frozen=True)
class Allreduce:
    """A measured allreduce beside its prediction without measurements, and the band of that."""

    name: str
    measured_s: float
    predicted_s: float
    low_s: float
    high_s: float

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted_s / self.measured_s - 1


@dataclass(frozen=True)
class Layout:
    """A measured step beside its predictions, without measurements of the network and from the page's own rows."""

    nodes: int
    gpus: int
    measured_s: float
    bare_s: float
    from_rows_s: float

    @property
    def name(self) -> str:
        """Nodes and GPUs of each."""
        return f"{self.nodes} x {self.gpus}"

    @property
    def errors(self) -> tuple[float, float]:
        """Predicted over measured, less one: without measurements, and from the page's rows."""
        return self.bare_s / self.measured_s - 1, self.from_rows_s / self.measured_s - 1


def baskerville_rows(kind: str) -> list[Row]:
    """Return the page's rows of `kind`: `ddp`, `allreduce` (over NCCL) or `allreduce-gloo`."""
    return [row for row in rows_of(_SYSTEM) if row["kind"] == kind]


def placed(nodes: int, gpus: int, *, far: bool) -> Placement:
    """Return the layout's placement; `far` puts that of 2 x 2 on the socket without the NIC."""
    box = machine("baskerville")
    on_far = far and (nodes, gpus) == (2, 2)
    return (replace(box, visible_devices=FAR) if on_far else box).place(nodes, gpus)


def allreduces(*, far: bool = True) -> Iterator[Allreduce]:
    """Yield each allreduce over NCCL of the page."""
    for row in baskerville_rows("allreduce"):
        nodes, gpus = int(row["nodes"]), int(row["gpus_per_node"])
        placement = placed(nodes, gpus, far=far)
        if row["link"] == "pcie4":
            placement = _changed(placement, lambda node: replace(node, peer_to_peer="LOC"))
        if row["link"] == "25gbe":
            placement = _changed(placement, _slow_ethernet)
        options = CollectiveOptions(algorithm=row["algo"] or "auto", isolated=False)
        predicted_s = make_transport(placement, "nccl", None, options).allreduce_s(MESSAGE_BYTES)
        [(low, high)] = factors(placement, "nccl", None, [MESSAGE_BYTES], options.algorithm)
        name, measured_s = f"{nodes} x {gpus}, {row['link']}, {options.algorithm}", float(row["allreduce_s"])
        yield Allreduce(name, measured_s, predicted_s, predicted_s * low, predicted_s * high)


def layouts(dtype: str, *, far: bool = True) -> list[Layout]:
    """Return the five layouts of GPT-2 Large with gradients of `dtype`."""
    found = []
    for _, row in cases(replace(_SYSTEM, dtypes=(dtype,))):
        shape = int(row["nodes"]), int(row["gpus_per_node"])
        predicted = _predicted(workload(_SYSTEM, dtype, row), placed(*shape, far=far))
        found.append(Layout(*shape, step_s(_SYSTEM, row), *predicted))
    return found


def _predicted(job: Workload, placement: Placement) -> tuple[float, float]:
    """Return the step without measurements, and from the rows of the algorithm that NCCL takes for its buckets."""
    algorithm = make_transport(placement, "nccl").choice(BUCKET_BYTES).algorithm
    forced = _rows().get((placement.nodes, placement.gpus_per_node, algorithm))
    time_s = _rows()[placement.nodes, placement.gpus_per_node, ""] if forced is None else forced
    curve = Curve(
        placement.topology.fingerprint(),
        placement.nodes,
        placement.gpus_per_node,
        (CurvePoint(MESSAGE_BYTES, time_s),),
        algorithm,
    )
    own = replace(Calibration.priors("nccl"), curves=(curve,))
    bare = Job(job, placement.topology, placement.nodes, placement.gpus_per_node)
    from_rows = replace(bare, options=Options(algorithm=algorithm), calibration=own)
    bare_s, from_rows_s = (predict(each, band=False).iteration_s for each in (bare, from_rows))
    return bare_s, from_rows_s


def _rows() -> Mapping[tuple[int, int, str], float]:
    """Return the page's allreduce times over its fastest links by nodes, GPUs of each and forced algorithm."""
    return {
        (int(row["nodes"]), int(row["gpus_per_node"]), row["algo"]): float(row["allreduce_s"])
        for row in baskerville_rows("allreduce")
        if row["link"] in ("nvlink", "hdr")
    }


def _slow_ethernet(node: NodeTemplate) -> NodeTemplate:
    """Return the node with its port of 25 Gb/s Ethernet in place of the InfiniBand's."""
    nics = tuple(replace(nic, kind="ethernet", bandwidth=25e9 / 8, gpudirect=False) for nic in node.nics)
    links = tuple(replace(link, bandwidth=25e9 / 8) if link.kind == "nic" else link for link in node.links)
    return replace(node, nics=nics, links=links)


def _changed(placement: Placement, change: Callable[[NodeTemplate], NodeTemplate]) -> Placement:
    topology = placement.topology
    groups = tuple(NodeGroup(change(group.template), group.count) for group in topology.groups)
    changed = replace(topology, groups=groups)
    assert isinstance(changed, Topology)
    return changed.place(placement.nodes, placement.gpus_per_node)


def main() -> None:
    """Print both tables."""
    print(f"{'allreduce of 1.3 GiB':24}{'measured ms':>12}{'predicted':>11}{'error':>8}  band")
    for each in allreduces():
        times = f"{each.measured_s * 1e3:12.1f}{each.predicted_s * 1e3:11.1f}{each.error:8.0%}"
        print(f"{each.name:24}{times}  {each.low_s * 1e3:.1f} to {each.high_s * 1e3:.1f}")
    for far in (False, True):
        cards = "without" if far else "with"
        for dtype in DTYPES:
            found = layouts(dtype, far=far)
            print(f"\ngradients in {dtype}, 2 x 2 on the socket {cards} the NIC")
            print(f"{'layout':8}{'measured ms':>12}{'bare':>9}{'error':>8}{'own rows':>10}{'error':>8}")
            for one in found:
                bare, own = one.errors
                times = f"{one.measured_s * 1e3:12.1f}{one.bare_s * 1e3:9.1f}{bare:8.0%}"
                print(f"{one.name:8}{times}{one.from_rows_s * 1e3:10.1f}{own:8.0%}")
            medians = [median(abs(one.errors[number]) for one in found) for number in (0, 1)]
            print(f"{'median':8}{'':12}{'':9}{medians[0]:8.0%}{'':10}{medians[1]:8.0%}")


if __name__ == "__main__":
    parser(__doc__).parse_args()
    main()
