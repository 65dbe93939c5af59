"""A model on each machine: the workload of that machine's own GPU, found once for each GPU, precision and batch."""

from __future__ import annotations

from dataclasses import dataclass, field

from ddpsim.errors import InputError, WorkloadError
from ddpsim.prediction.carry import carried
from ddpsim.topology.declared import Cluster
from ddpsim.workload import Workload
from ddpsim.workload.files import load_workload
from ddpsim.workload.gpus import gpu_named, kind_of

RECORDED = "recorded"
"""Behind a name and @: the workload keeps the pace it was recorded or estimated at, on every machine."""

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
        """Return the workload on the GPUs of `topology`.

        Raises:
            WorkloadError: its file says too little for that GPU, batch or precision; the remedy is named.
        """
        target = None if self.keeps_pace else self.gpu or gpu_model_of(topology)
        key = (target, batch_size, precision)
        if key not in self._found:
            self._found[key] = self._made(*key)
        return self._found[key]

    def _made(self, gpu: str | None, batch_size: int | None, precision: str | None) -> Workload:
        source = self.source
        same_batch = batch_size in (None, source.batch_size)
        if not same_batch:
            raise WorkloadError(f"was recorded with {source.batch_size} samples a rank", place=self.name)
        if gpu is None or kind_of(source.device).lower() == kind_of(gpu).lower():
            return source
        return carried(source, gpu_named(gpu).fitted(), None, precision).workload


def gpu_model_of(topology: Cluster) -> str | None:
    """Return the GPU of a machine, of its first node where they differ; None where it has none."""
    if topology.compute_device == "cpu":
        return None
    return topology.groups[0].template.gpus[0].model
