"""What encoding costs by compression scheme and backend: constants that the microbenchmark of ddpexec measures.

A scheme's kernels and bytes (`ddpsim.schedules.compression.CodecWork`) become time by two constants, as a
roofline has them. On a core they come out 0.4 to 5.5 times what those of plain copies tell, so that each scheme has
its own (`studies/orders/order-findings.md`).
"""

from __future__ import annotations

from collections.abc import Mapping

from ddpsim.collectives.constant import Constant

CODECS = ("fp16", "bf16", "powersgd", "onebit", "topk", "adaptive")
"""Families of schemes: what stands before the colon in a scheme's name."""

_KERNEL = "prior: a kernel costs what one of DDP's hooks (on a GPU copies) does; measured by `microbench`"
_BYTES = "prior: a byte read or written takes half of what a copied one does; measured by `microbench`"
_PRIORS = {"gloo": (3.0e-6, 10e9), "mpi": (3.0e-6, 10e9), "nccl": (2.5e-6, 600e9), "rccl": (2.5e-6, 600e9)}


def _constants(backend: str) -> tuple[Constant, ...]:
    kernel_s, rate = _PRIORS[backend]
    return tuple(
        constant
        for codec in CODECS
        for constant in (
            Constant(f"{backend}.ddp.{codec}_kernel_s", kernel_s, "s", _KERNEL),
            Constant(f"{backend}.ddp.{codec}_Bps", rate, "B/s", _BYTES),
        )
    )


CODEC_PRIORS: Mapping[str, tuple[Constant, ...]] = {backend: _constants(backend) for backend in _PRIORS}
"""By backend; a prior follows the device's copies, so that the values here are those of an unknown one."""
