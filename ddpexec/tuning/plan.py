"""What a tuner puts in force: buckets, and the schedule of a scheme where it is not DDP's. No torch is needed."""

from __future__ import annotations

from dataclasses import dataclass

from ddpsim.bucketing import BucketCaps
from ddpsim.schedules.schedule import Schedule

Groups = tuple[tuple[int, ...], ...]
"""Buckets in launch order, of parameters by number in registration order."""
DDP = "ddp"


@dataclass(frozen=True, slots=True)
class TrialPlan:
    """What all ranks reduce by between two of a tuner's switches.

    Attributes:
        caps: of the buckets, as a constructor takes them.
        groups: the buckets.
        schedule: of another scheme than DDP's, with these buckets; None is DDP's.
    """

    caps: BucketCaps
    groups: Groups
    schedule: Schedule | None = None

    @property
    def scheme(self) -> str:
        """The name of its scheme."""
        return DDP if self.schedule is None else self.schedule.scheme

    @property
    def key(self) -> tuple[str, Groups]:
        """What is equal where two plans are one."""
        return self.scheme, self.groups

    @property
    def messages(self) -> int:
        """How many messages an iteration sends."""
        return len(self.groups) if self.schedule is None else len(self.schedule)


def call_of(caps: BucketCaps, scheme: str | None = None) -> str:
    """Return the line that gives these caps: to torch's DDP, or to our wrapper that carries out schemes.

    >>> call_of(BucketCaps(bucket_cap_mb=5))
    'DistributedDataParallel(model, bucket_cap_mb=5)'
    >>> call_of(BucketCaps(bucket_cap_mb=5), "dear")
    'ScheduledDataParallel(model, "dear", make_optimizer, caps=BucketCaps(bucket_cap_mb=5), learn=3)'
    """
    arguments = ", ".join(f"{name}={value}" for name, value in caps.torch_arguments().items())
    if scheme is None:
        return f"DistributedDataParallel(model{', ' if arguments else ''}{arguments})"
    caps_given = f", caps=BucketCaps({arguments})" if arguments else ""
    return f'ScheduledDataParallel(model, "{scheme}", make_optimizer{caps_given}, learn=3)'
