"""A model on each machine: the workload of that machine's own GPU, found once for each GPU, precision and batch."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ddpsim.errors import InputError, WorkloadError
from ddpsim.prediction.carry import carried
from ddpsim.topology.declared import Cluster
from ddpsim.workload import Workload
from ddpsim.workload.anchors import RooflineFactors
from ddpsim.workload.estimate import ModelShape, estimate
from ddpsim.workload.files import load_workload
from ddpsim.workload.gpus import gpu_named, kind_of
from ddpsim.workload.optimizers import OPTIMIZERS, Optimizer, optimizer_named

RECORDED = "recorded"
"""Behind a name and @: the workload keeps the pace it was recorded or estimated at, on every machine."""

_REMEDY = "make the file with `python -m ddpexec estimate --step ...` or `--model ...`, which keeps the operators in it"
_CLIPPED = " with gradient clipping"

Key = tuple[str | None, int | None, str | None]


@dataclass(slots=True)
class Model:
    """A model is what is compared on every machine.

    Attributes:
        name: as it was asked for, without what stands behind @.
        source: the workload of its file.
        keeps_pace: whether it keeps its pace on every machine.
        gpu: the GPU it is put on whatever the machine has; None is the machine's own.
    """

    name: str
    source: Workload
    keeps_pace: bool = False
    gpu: str | None = None
    _found: dict[Key, Workload] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, asked: str | Workload) -> Model:
        """Return the model that a name, a path or a workload means.

        Args:
            asked: `resnet50` or a file, put on each machine's GPU; `resnet50@A100`, put on that; `resnet50@recorded`, a
                whole shipped name (`resnet50@a100-amp-b32`), or a workload: as it is.

        Raises:
            UnknownNameError: neither a file nor a shipped name, or no such GPU.
        """
        if isinstance(asked, Workload):
            return cls(asked.name, asked, keeps_pace=True)
        base, at, where = asked.rpartition("@")
        if not at:
            return cls(asked, load_workload(asked))
        if where == RECORDED:
            return cls(asked, load_workload(base), keeps_pace=True)
        try:
            return cls(asked, load_workload(asked), keeps_pace=True)
        except InputError:
            return cls(asked, load_workload(base), gpu=gpu_named(where).name)

    def on(self, topology: Cluster, batch_size: int | None = None, precision: str | None = None) -> Workload:
        """Return the workload on the GPUs of `topology`, without its operators, which no prediction needs.

        Raises:
            WorkloadError: its file says too little for that GPU, batch or precision; the remedy is named.
        """
        target = None if self.keeps_pace else self.gpu or gpu_model_of(topology)
        key = (target, batch_size, precision)
        if key not in self._found:
            self._found[key] = replace(self._made(*key), operators=None)
        return self._found[key]

    def _made(self, gpu: str | None, batch_size: int | None, precision: str | None) -> Workload:
        source = self.source
        same_gpu = gpu is None or kind_of(source.device).lower() == kind_of(gpu).lower()
        if same_gpu and batch_size in (None, source.batch_size) and precision in (None, source.precision):
            return source
        if source.operators is None:
            return self._without_operators(gpu, batch_size, precision, same_gpu)
        if self.keeps_pace or (gpu is None and source.one_clock):
            what = f"keeps the pace of its file, of batch {source.batch_size} in {source.precision}"
            remedy = "leave out @" + RECORDED + ", so that it is estimated, or leave `batch_size` and `precision` out"
            raise WorkloadError(what, place=self.name, remedy=remedy)
        wanted = precision or source.precision
        operators = source.operators.of_batch(batch_size or source.batch_size)
        target = gpu_named(source.device if gpu is None else gpu)
        # A shipped file keeps the shares it was estimated with, on its own GPU; its pace is relative to them.
        as_shipped = same_gpu and source.provenance.get("shares_source") == target.achieved.source
        target = target if as_shipped else target.fitted()
        pace = self._pace(wanted) if same_gpu else None
        return estimate(ModelShape.of(source, operators), target, wanted, None, _optimizer(source), pace)

    def _pace(self, precision: str) -> RooflineFactors | None:
        """Return the pace of the file's own GPU where a measured time is in it, of its own precision.

        Raises:
            WorkloadError: a pace in the file that cannot be read.
        """
        if precision != self.source.precision:
            return None
        return RooflineFactors.if_scaled(self.source.provenance, self.name)

    def _without_operators(
        self, gpu: str | None, batch_size: int | None, precision: str | None, same_gpu: bool
    ) -> Workload:
        source = self.source
        if batch_size not in (None, source.batch_size) or precision not in (None, source.precision):
            asked = f"batch {batch_size or source.batch_size} in {precision or source.precision}"
            what = f"is of batch {source.batch_size} in {source.precision}, without the operators that {asked} needs"
            raise WorkloadError(what, place=self.name, remedy=_REMEDY)
        if source.one_clock:
            what = f"was recorded on {source.device_label}, whose times say nothing of {gpu}; it has no operators"
            raise WorkloadError(what, place=self.name, remedy=_REMEDY)
        return source if same_gpu or gpu is None else carried(source, gpu_named(gpu).fitted()).workload


def _optimizer(source: Workload) -> Optimizer | None:
    """Return the optimizer that a file was estimated with; None is that of the shipped workloads."""
    name, clipped, _ = str(source.provenance.get("optimizer")).partition(_CLIPPED)
    return optimizer_named(name, clipping=bool(clipped)) if name in OPTIMIZERS else None


def gpu_model_of(topology: Cluster) -> str | None:
    """Return the GPU of a machine, of its first node where they differ; None where it has none."""
    if topology.compute_device == "cpu":
        return None
    return topology.groups[0].template.gpus[0].model
