"""Bucket caps as torch's constructor takes them, and the limits in bytes that they become."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ddpsim.errors import PlanError
from ddpsim.options import text
from ddpsim.options.option import Option, Section, plain_signature
from ddpsim.units import MIB, mib_to_bytes

FIRST_BUCKET_BYTES = MIB
"""torch's `dist._DEFAULT_FIRST_BUCKET_BYTES`."""

DEFAULT_CAP_MB = 25
"""torch's `bucket_cap_mb` where none is given."""


@plain_signature
@dataclass(frozen=True, slots=True)
class BucketCaps:
    """The cap options of `DistributedDataParallel`: all None is torch's default, [1, 25] MiB.

    Attributes:
        bucket_cap_mb: one cap for every bucket, in MiB; 0 puts each gradient in a bucket of its own.
        first_bucket_mb: cap of the first bucket only, in MiB; the others keep `bucket_cap_mb`.
        bucket_cap_mb_list: caps of the first, second, ... bucket in MiB; the last repeats.

    Raises:
        PlanError: where two of them contradict each other, the list is empty, or a cap is negative.
    """

    bucket_cap_mb: Annotated[
        float | None,
        Option("One cap for every bucket, MiB; 0: a bucket a gradient. [torch: first 1, then 25]", "C", parse=text.cap),
        Section.BUCKETS,
    ] = None
    first_bucket_mb: Annotated[
        float | None,
        Option("Cap of the first bucket only, MiB; `plan` takes it with `bucket_cap_mb`.", "M", parse=text.cap),
        Section.BUCKETS,
    ] = None
    bucket_cap_mb_list: Annotated[
        tuple[float, ...] | None,
        Option("Caps of the first, second, ... bucket; the last repeats.", "1,25", parse=text.caps),
        Section.BUCKETS,
    ] = None

    def __post_init__(self) -> None:
        if self.bucket_cap_mb_list is not None:
            listed = ",".join(f"{cap:g}" for cap in self.bucket_cap_mb_list)
            for other, value in (("bucket_cap_mb", self.bucket_cap_mb), ("first_bucket_mb", self.first_bucket_mb)):
                if value is not None:
                    raise PlanError(
                        f"`{other}={value:g}` and `bucket_cap_mb_list={listed}` are both given",
                        remedy="keep one",
                    )
            if not self.bucket_cap_mb_list:
                raise PlanError("bucket_cap_mb_list is empty", remedy="give at least one cap in MiB, e.g. 1,25")
        self.limits()

    def limits(self) -> list[int]:
        """Return the limits in bytes, as the rebuilt and the find_unused assignment use them."""
        if self.bucket_cap_mb_list is not None:
            return [mib_to_bytes(cap, "bucket_cap_mb_list") for cap in self.bucket_cap_mb_list]
        cap = mib_to_bytes(DEFAULT_CAP_MB if self.bucket_cap_mb is None else self.bucket_cap_mb, "bucket_cap_mb")
        if self.first_bucket_mb is not None:
            return [mib_to_bytes(self.first_bucket_mb, "first_bucket_mb"), cap]
        return [FIRST_BUCKET_BYTES, cap] if self.bucket_cap_mb is None else [cap]

    def torch_arguments(self) -> dict[str, float | list[float]]:
        """Return the keyword arguments that give stock torch these limits; none for torch's default."""
        if self.bucket_cap_mb_list is not None:
            return {"bucket_cap_mb_list": [_plain(cap) for cap in self.bucket_cap_mb_list]}
        cap = DEFAULT_CAP_MB if self.bucket_cap_mb is None else self.bucket_cap_mb
        if self.first_bucket_mb is not None:
            return {"bucket_cap_mb_list": [_plain(self.first_bucket_mb), _plain(cap)]}
        return {} if self.bucket_cap_mb is None else {"bucket_cap_mb": _plain(cap)}


def _plain(cap: float) -> float:
    return int(cap) if cap == int(cap) else cap
