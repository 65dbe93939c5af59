"""What a job may not be: options out of range, and options that contradict each other."""

from __future__ import annotations

from ddpsim.errors import InputError
from ddpsim.jobs.job_options import JobOptions
from ddpsim.options.checks import at_least_one, positive
from ddpsim.order import predictor, rebuild
from ddpsim.schedules.named import scheme_named

MOST_GROUPS = 64
"""Process groups that take turns; each has streams and connections of its own."""


def check_job(job: JobOptions) -> None:
    """Refuse a job that cannot be.

    Raises:
        InputError: it names the option, or both of two.
    """
    at_least_one("accumulate", job.accumulate)
    at_least_one("process_groups", job.process_groups, MOST_GROUPS)
    slower = {f"stragglers[{rank}]": factor for rank, factor in job.stragglers.items()}
    for name, factor in {"scale_compute": job.scale_compute, **slower}.items():
        positive(name, factor)
    for layer, probability in job.drop.items():
        if not 0 <= probability <= 1:
            remedy = "give a number from 0 to 1"
            raise InputError(f"{probability!r} is not a probability", place=f"drop[{layer}]", remedy=remedy)
    if not 0 <= job.seed < 1 << 63:
        raise InputError(f"{job.seed} is not a seed", place="seed", remedy="give a number from 0 to 2^63 - 1")
    _check_order(job)
    _check_drop_buckets(job)
    if job.codec.name != "none" and job.process_groups > 1:
        raise _both(f"compression={job.compression}", f"process_groups={job.process_groups}")
    if job.codec.name != "none" and job.comm == "noop":
        raise _both(f"compression={job.compression}", "comm=noop")
    _check_scheme(job)
    if job.assignment == "initial" and job.find_unused_parameters:
        raise _both("assignment=initial", "find_unused_parameters")


def _check_scheme(job: JobOptions) -> None:
    scheme_named(job.scheme)
    if not job.scheduled:
        return
    asked = f"scheme={job.scheme}" if job.scheme != "ddp" else "overlap=off"
    others = {
        f"compression={job.compression}": job.codec.name != "none",
        "drop": bool(job.drop),
        f"order={job.order}": job.order is not None,
        "find_unused_parameters": job.find_unused_parameters,
        f"process_groups={job.process_groups}": job.process_groups > 1,
    }
    for other, given in others.items():
        if given:
            raise _both(asked, other)


def _check_drop_buckets(job: JobOptions) -> None:
    if job.drop_buckets == "mixed":
        return
    asked = f"drop_buckets={job.drop_buckets}"
    if not job.drop:
        raise InputError(f"`{asked}` says nothing without `drop`", remedy="name a layer, e.g. `drop` layer.3:0.5")
    others = {f"order={job.order}": job.order is not None, "assignment=initial": job.assignment == "initial"}
    if job.drop_buckets == "remapped":
        others = {"gradient_as_bucket_view": job.gradient_as_bucket_view}
    for other, given in others.items():
        if given:
            raise _both(asked, other)


def _check_order(job: JobOptions) -> None:
    try:
        predictor(job.predictor)
    except InputError as error:
        error.at("predictor")
    if job.order is None:
        if (job.predictor, job.consensus) != ("last", "rank0"):
            remedy = "add `order=once`, or drift"
            raise InputError("`predictor` and `consensus` say nothing without `order`", remedy=remedy)
        return
    try:
        rebuild(job.order)
    except InputError as error:
        error.at("order")
    if job.assignment != "rebuilt":
        raise _both(f"order={job.order}", f"assignment={job.assignment}")


def _both(one: str, other: str) -> InputError:
    return InputError(f"`{one}` and `{other}` are both given", remedy="keep one")
