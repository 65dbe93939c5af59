"""The line to paste: the call of torch's constructor that does what a job asks, or a comment that says why none does.

Three things keep stock torch from doing what is simulated: what only ddpexec has (layers left out, other orders,
several process groups); buckets that its caps do not give from the order in which gradients arrive; and gradients that
do not come, for which it raises unless it searches for them, or was told that the graph never changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ddpsim.bucketing import BucketCaps, BucketPlan, Parameter, rebuilt_plan, unused_plan
from ddpsim.bucketing.caps import NO_CALL, TorchCall
from ddpsim.bucketing.torch_caps import torch_caps
from ddpsim.schedules.named import scheme_named
from ddpsim.schedules.scheme import Runner
from ddpsim.simulation.jobs.job_options import JobOptions
from ddpsim.workload import Workload

Order = Sequence[int]

_RUNNERS: Mapping[Runner, str] = {
    "ddpexec": "run it with ddpexec",
    "DataParallel": "torch.nn.DataParallel(model) is it",
    "fully_shard": "torch.distributed.fsdp.fully_shard is it",
    "DeepSpeed": "DeepSpeed runs it",
}


def torch_line(job: JobOptions, plan: BucketPlan, workloads: Sequence[Workload]) -> TorchCall:
    """Return the call whose text is the line to paste for `job` with the buckets of `plan`.

    Args:
        job: what was asked for.
        plan: the buckets in force at the end.
        workloads: of every kind of rank, the first rank 0's; which gradients come, and in which orders.
    """
    missing, steady = _find_missing(workloads)
    if (reason := _find_beyond_torch(job)) is not None:
        return TorchCall(None, note=f"stock torch has no {reason}; {_runs(job.scheme)}")
    if missing and not job.find_unused_parameters and (not steady or job.sync_every > 1):
        names = _name_parameters(workloads[0], missing)
        when = "in some iterations" if not steady else "in any iteration, nor static_graph under no_sync"
        why = f"stock torch raises: {names} no gradient {when}; predict with --find-unused-parameters"
        return TorchCall(None, note=why)
    searched = job.find_unused_parameters or job.assignment == "unused"
    # Where an order policy rebuilds, the plan is that of the order that came.
    orders = workloads[0].arrival_orders() if job.order is None else None
    caps = caps_giving(plan, workloads[0].parameters, find_unused=searched, orders=orders)
    if caps is None:
        return NO_CALL
    static = bool(missing) and not searched
    flags = {
        **({"find_unused_parameters": True} if searched else {}),
        **({"static_graph": True} if static else {}),
        **({"gradient_as_bucket_view": True} if job.gradient_as_bucket_view else {}),
        **({} if job.broadcast_buffers else {"broadcast_buffers": False}),
    }
    notes = [f"{_name_parameters(workloads[0], missing)} no gradient in any iteration"] if static else []
    # What must be registered on what the constructor returns.
    if job.compression != "none":
        notes.append(f'then register_comm_hook(*hook_for("{job.compression}")), of ddpexec.ddp.compression')
    if job.comm == "noop":
        notes.append("then register_comm_hook(None, noop_hook), of torch's debugging_hooks")
    return TorchCall(caps, tuple(flags.items()), "; ".join(notes))


def caps_giving(
    plan: BucketPlan, parameters: Sequence[Parameter], *, find_unused: bool, orders: Iterable[Order] | None = None
) -> BucketCaps | None:
    """Return the caps with which stock torch makes the buckets of `plan`: its own, or the roundest that will do.

    Args:
        plan: whose buckets.
        parameters: in registration order.
        find_unused: whether torch searches for unused parameters: it then fills in registration order, once for all.
        orders: in which gradients may arrive, of which one must give the plan; None is the one that the plan spells
            out, where its own call needs no proof.

    Returns:
        None where no caps do.
    """
    groups = [frozenset(group) for group in plan.groups()]
    own = plan.call.caps
    if orders is None and not find_unused and own is not None and not plan.call.find_unused_parameters:
        return own
    arrivals = [[index for group in plan.groups() for index in group]] if orders is None else list(orders)

    def gives(caps: BucketCaps) -> bool:
        made = [unused_plan(parameters, caps)] if find_unused else (rebuilt_plan(parameters, caps, o) for o in arrivals)
        return any([frozenset(group) for group in each.groups()] == groups for each in made)

    if own is not None and gives(own):
        return own
    listed = torch_caps(parameters, plan.groups()[::-1] if find_unused else plan.groups())
    caps = None if listed is None else BucketCaps(bucket_cap_mb_list=listed)
    return caps if caps is not None and gives(caps) else None


def _find_beyond_torch(job: JobOptions) -> str | None:
    """Return what `job` asks for and stock torch's DistributedDataParallel has not."""
    if job.scheduled:
        return f"scheme {job.scheme}" if job.scheme != "ddp" else f"--overlap {job.overlap}"
    if any(probability > 0 for probability in job.drop.values()):
        return "layer dropping (--drop)"
    if job.order is not None and not (job.consensus == "rank0" and _is_rebuilt_once(job.order)):
        return f"--order {job.order}" + (f" --consensus {job.consensus}" if job.consensus != "rank0" else "")
    return f"--process-groups {job.process_groups}" if job.process_groups > 1 else None


def _runs(scheme: str) -> str:
    """Return what runs a job that stock torch's DistributedDataParallel cannot."""
    return _RUNNERS[scheme_named(scheme).runner]


def _find_missing(workloads: Sequence[Workload]) -> tuple[frozenset[int], bool]:
    """Return the parameters that lack a gradient at any time, and whether they are the same at all times."""
    seen = {missing for workload in workloads for missing in workload.missing_gradients()}
    return frozenset().union(*seen), len(seen) == 1


def _name_parameters(workload: Workload, parameters: Iterable[int]) -> str:
    first, *others = sorted(parameters)
    name = workload.parameters[first].name
    return f"{name} has" if not others else f"{name} and {len(others)} more have"


def _is_rebuilt_once(order: str) -> bool:
    from ddpsim.bucketing.order.rebuild import Once, rebuild

    return rebuild(order) == Once()
