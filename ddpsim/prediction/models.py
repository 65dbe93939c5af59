"""Whose pace a workload has on a machine: that of the machine's own GPU wherever it can be estimated.

`Model.on` is the step of a prediction's path between names (`arguments.py`) and simulation (`predict.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ddpsim.common import shipped
from ddpsim.common.errors import WorkloadError
from ddpsim.simulation.jobs.device_split import put_like
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.simulation.jobs.stages import boundary_of
from ddpsim.topology.declared import Cluster
from ddpsim.topology.gpus.table import find_shipped_gpu
from ddpsim.workload import Workload
from ddpsim.workload.devices import check_devices_told
from ddpsim.workload.files import RECORDED, locate_workload, read_workload, with_operators
from ddpsim.workload.gpus import gpu_named, has_peak, kind_of

Parts = tuple[int, int]
"""Ranks that share each layer, and ranks that have some of the experts each; one of them is 1."""
Key = tuple[str | None, int | None, str | None, Parts]


@dataclass(slots=True)
class Model:
    """One training step, put on the GPU of each machine that is asked about.

    Attributes:
        name: as it was asked for.
        source: the workload of its file, with its operators where they are known.
        keeps_pace: whether it keeps its own pace on every machine.
        gpu: the GPU whose pace it has whatever the machine has; None is the machine's own.
    """

    name: str
    source: Workload
    keeps_pace: bool = False
    gpu: str | None = None
    _paced: dict[Key, Workload] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, model: str | Workload | Model, options: Options | None = None) -> Model:
        """Return the model that a name, a path or a workload means.

        Args:
            model: `resnet50`, `resnet50@a100-amp-b32`, a file or a workload, put on each machine's GPU;
                `resnet50@H200`, at that GPU's pace everywhere; `resnet50@recorded`, at its file's.
            options: whether the pace is kept; None does not ask for it.

        Raises:
            UnknownNameError: neither a file nor a shipped name, or no such GPU.
        """
        keep = options is not None and options.keep_pace
        if isinstance(model, Model):
            return model
        if isinstance(model, Workload):
            return cls(model.name, with_operators(model), keep)
        path, where = locate_workload(model)
        source = with_operators(read_workload(path, model))
        try:
            check_devices_told(source.name, source.devices, source.parameters)
        except WorkloadError as error:
            error.at(model)
        if where in (None, RECORDED):
            return cls(model, source, keep or where == RECORDED)
        return cls(model, source, gpu=gpu_named(str(where)).name)

    def on(
        self,
        topology: Cluster,
        batch_size: int | None = None,
        precision: str | None = None,
        options: Options | None = None,
    ) -> Workload:
        """Return the workload at the pace of the GPUs of `topology`, without its operators, which no prediction needs.

        Where it cannot be estimated for them it keeps its pace: `Prediction.other_devices` then names them.

        Args:
            topology: of several kinds of nodes the first decides.
            batch_size, precision: other than the workload's own; None is its own.
            options: of the run; a CPU's workload under gloo trains on the machine's CPUs, and of tensor or expert
                parallelism the workload is one rank's part.

        Raises:
            WorkloadError: another batch, precision, GPU or a part was asked for, for which its file says too little.
        """
        host_computes = self.source.on_cpu and options is not None and options.backend in ("gloo", "mpi")
        there = None if host_computes or topology.compute_device == "cpu" else topology.compute_device
        target = None if self.keeps_pace else self.gpu or there
        parts = (1, 1) if options is None else (options.tensor_parallel, options.expert_parallel)
        key = (target, batch_size, precision, parts)
        if key not in self._paced:
            paced = self._make(*key)
            self._paced[key] = replace(put_like(paced, self.source) if self.source.devices else paced, operators=None)
        paced = self._paced[key]
        if options is None or options.cut.stages == 1:
            return paced
        # What passes between stages follows from the operators, which only the source still has.
        of_source = replace(self.source, batch_size=paced.batch_size, precision=paced.precision)
        return replace(paced, boundary_bytes=boundary_of(of_source))

    def _make(self, gpu: str | None, batch_size: int | None, precision: str | None, parts: Parts) -> Workload:
        """Return the workload at the pace of `gpu`, None for its own, by the surest way there is.

        As it was recorded, where that is the GPU; carried from the recorded GPU to this one by both rooflines;
        estimated from its operators. A workload of another GPU that allows neither keeps its own pace.
        """
        source = self.source
        if parts != (1, 1):
            return self._part(gpu, batch_size, precision, parts)
        other = batch_size not in (None, source.batch_size) or precision not in (None, source.precision)
        if not other and (gpu is None or self._is_known_on(gpu)):
            return source
        if other and (self.keeps_pace or (gpu is None and source.one_clock)):
            what = f"keeps the pace of its file, of batch {source.batch_size} in {source.precision}"
            remedy = f"leave out @{RECORDED} and `keep_pace`, so that it is estimated, or `batch_size` and `precision`"
            raise WorkloadError(what, place=self.name, remedy=remedy)
        if not (other or self.gpu or self._is_estimable(str(gpu))):
            return source
        # A measured step of another GPU says more than an estimate: carried steps are 10 to 11 % off in the median,
        # estimates 15 to 20 % (`doubts/spreads.py`). An estimate is estimated anew instead.
        if (
            gpu is not None
            and not other
            and not source.one_clock
            and (not source.estimated or source.operators is None)
        ):
            from ddpsim.prediction.carry import carry_workload
            from ddpsim.workload.estimate import ModelShape

            shape = None if source.operators is None else ModelShape.of(source, source.operators)
            return carry_workload(source, gpu_named(gpu).with_fitted(), shape).workload
        from ddpsim.workload.on_gpu import estimate_on_gpu

        return estimate_on_gpu(source, gpu_named(gpu or source.device), batch_size=batch_size, precision=precision)

    def _part(self, gpu: str | None, batch_size: int | None, precision: str | None, parts: Parts) -> Workload:
        """Return what one rank of several computes of each layer, or of the experts, on `gpu` or on its own."""
        from ddpsim.workload.on_gpu import REMEDY, estimate_on_gpu

        source, (tensor, expert) = self.source, parts
        known = gpu if gpu is not None and (self.gpu or self._is_estimable(gpu)) else source.gpu
        if known is None:
            what = f"{source.name} is computed by a CPU, and has no operators that {tensor * expert} ranks could share"
            place = "tensor_parallel" if tensor > 1 else "expert_parallel"
            raise WorkloadError(what, place=place, remedy=REMEDY)
        return estimate_on_gpu(
            source,
            gpu_named(known),
            batch_size=batch_size,
            precision=precision,
            tensor_parallel=tensor,
            expert_parallel=expert,
        )

    def _is_known_on(self, gpu: str) -> bool:
        """Whether the source has the pace of `gpu`, and is not to be estimated anew there."""
        if kind_of(self.source.device).lower() != kind_of(gpu).lower():
            return False
        from ddpsim.workload.on_gpu import is_superseded

        return not (is_superseded(self.source) and _is_shipped(self.source))

    def _is_estimable(self, gpu: str) -> bool:
        spec, source = find_shipped_gpu(gpu), self.source
        if source.operators is None or spec is None:
            return False
        return has_peak(spec, source.precision, source.autocast_dtype)


def _is_shipped(source: Workload) -> bool:
    """Whether a workload is a shipped one as its file has it: what somebody changed in one is theirs, and stays."""
    if source.name not in shipped.names("workload"):
        return False
    original = read_workload(shipped.path("workload", source.name), source.name)
    return replace(source, operators=None) == replace(original, operators=None)
