"""Gradient compression as data: what a scheme puts on the wire for a bucket, and what it costs to compute.

A scheme turns a bucket's gradients into messages: allreduces of fewer bytes (half precision, low-rank factors), or
all-gathers where what is sent cannot be summed on the way (signs, sparse values). `ddpexec.compression` runs the same
schemes for real.
"""

from ddpsim.compression.schemes import (
    ALLGATHER,
    ALLREDUCE,
    MIN_COMPRESSION_RATE,
    AdaptivePrecision,
    CodecWork,
    CompressedCollective,
    CompressionScheme,
    HalfPrecision,
    OneBit,
    PowerSGD,
    Roofline,
    TopK,
    Uncompressed,
    ratio,
    scheme,
    work,
)

__all__ = [
    "ALLGATHER",
    "ALLREDUCE",
    "MIN_COMPRESSION_RATE",
    "AdaptivePrecision",
    "CodecWork",
    "CompressedCollective",
    "CompressionScheme",
    "HalfPrecision",
    "OneBit",
    "PowerSGD",
    "Roofline",
    "TopK",
    "Uncompressed",
    "ratio",
    "scheme",
    "work",
]
