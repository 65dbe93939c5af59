"""A step whose operators are known, estimated on another GPU, or for another batch or precision."""

from __future__ import annotations

from dataclasses import replace

from ddpsim.common.errors import WorkloadError
from ddpsim.topology.gpus.table import find_shipped_gpu
from ddpsim.workload.anchors import MEASURED_ON, RooflineFactors
from ddpsim.workload.estimate import EstimateOptions, ModelShape, estimate
from ddpsim.workload.gpus import AchievedGpu, gpu_named, kind_of
from ddpsim.workload.optimizers import OPTIMIZERS, optimizer_named
from ddpsim.workload.profile import Workload

REMEDY = "make the file with `python -m ddpexec estimate --step ...` or `--model ...`, which keeps the operators in it"
_CLIPPED = " with gradient clipping"


def estimate_on_gpu(
    source: Workload,
    gpu: AchievedGpu,
    *,
    batch_size: int | None = None,
    precision: str | None = None,
    tensor_parallel: int = 1,
    expert_parallel: int = 1,
) -> Workload:
    """Return the step of `source` as it is estimated on `gpu`; on its own GPU, with nothing else asked, `source`.

    Where it was scaled to a measured step, it takes the same share of another GPU's roofline: otherwise machines with a
    measurement and machines without would be held against each other.

    What today's estimates supersede is estimated on its own GPU too: otherwise one step would have two times on one
    machine, by the name that it was asked for.

    Args:
        source: a workload with its operators.
        gpu: of the table, or described.
        batch_size: samples a rank and step; None is the workload's own.
        precision: of the computation; None is the workload's own.
        tensor_parallel: ranks of which the result is one's part of the step.
        expert_parallel: ranks that have some of the experts each, of which the result is one.

    Raises:
        WorkloadError: a workload without operators, a precision that the GPU lacks, a pace that cannot be read, or a
            step that was recorded, or is no transformer's, of which ranks are to compute parts.
    """
    same_gpu = kind_of(source.device).lower() == kind_of(gpu.name).lower()
    wanted, batch = precision or source.precision, batch_size or source.batch_size
    if tensor_parallel > 1:
        _check_parts(source, f"{tensor_parallel} ranks are each to compute a part of each layer")
    elif expert_parallel > 1:
        _check_parts(source, f"{expert_parallel} ranks are each to have some of the experts")
    elif same_gpu and (wanted, batch) == (source.precision, source.batch_size) and not is_superseded(source):
        return source
    if source.operators is None:
        request = f"batch {batch} in {wanted}" + ("" if same_gpu else f" on {gpu.name}")
        what = f"is of batch {source.batch_size} in {source.precision}, without the operators that {request} needs"
        raise WorkloadError(what, place=source.name, remedy=REMEDY)
    # Another batch on the file's own GPU keeps the shares that it was estimated with: its pace is relative to them.
    same_pace = same_gpu and wanted == source.precision
    shares = source.provenance.get("shares_source")
    as_shipped = same_pace and shares == gpu.achieved.source and not is_superseded(source)
    target = gpu if as_shipped else gpu.with_fitted()
    # A pace is relative to the shares that it was found with. Shipped workloads were fitted to other shares than
    # today's: on another GPU, which takes today's, their pace would correct what is not wrong there.
    pace = None
    if wanted == source.precision and (same_gpu or not _has_shipped_shares(source)):
        pace = RooflineFactors.if_scaled(source.provenance, source.name)
    shape = ModelShape.of(source, source.operators.with_batch(batch))
    # A file that names no optimizer was estimated with that of the shipped workloads.
    name, clipped, _ = str(source.provenance.get("optimizer")).partition(_CLIPPED)
    optimizer = optimizer_named(name, clipping=bool(clipped)) if name in OPTIMIZERS else None
    options = EstimateOptions(
        optimizer=optimizer, pace=pace, tensor_parallel=tensor_parallel, expert_parallel=expert_parallel
    )
    estimated = estimate(shape, target, wanted, options)
    if not same_gpu and pace is not None:
        estimated = replace(estimated, provenance={**estimated.provenance, MEASURED_ON: kind_of(source.device)})
    return replace(estimated, sequence_length=source.sequence_length)


def is_superseded(source: Workload) -> bool:
    """Whether a step was estimated from shares of the peak that today's estimates do not take.

    So are the shipped ones in 16 bits or TF32: their shares come from fused code, or are a prior, and transformers came
    out twice too fast (studies/estimates). Those of fp32 are V100's own, and a step that was scaled to a measured one
    keeps what it was scaled with.
    """
    if source.operators is None or source.precision == "fp32" or not source.estimated:
        return False
    return _has_shipped_shares(source) and RooflineFactors.if_scaled(source.provenance, source.name) is None


def _has_shipped_shares(source: Workload) -> bool:
    """Whether a step was estimated at the shipped workloads' shares: a pace relative to them is of no other GPU."""
    known = find_shipped_gpu(kind_of(source.device))
    return known is not None and source.provenance.get("shares_source") == gpu_named(known.name).achieved.source


def _check_parts(source: Workload, what: str) -> None:
    """Refuse to cut a step whose operators are not known, or whose time was measured as a whole."""
    if source.operators is None:
        raise WorkloadError(f"{what}, and its operators are not known", place=source.name, remedy=REMEDY)
    if not source.estimated:
        raise WorkloadError(f"{what}, and its times were recorded of whole ones", place=source.name, remedy=REMEDY)
