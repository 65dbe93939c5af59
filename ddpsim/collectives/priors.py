"""Every constant by backend, as it is without measurements: the transport's, and what DDP costs on it."""

from __future__ import annotations

from collections.abc import Mapping

from ddpsim.collectives.constant import Constant
from ddpsim.collectives.ddp_priors import DDP_PRIORS
from ddpsim.collectives.gloo_priors import PRIORS as GLOO_PRIORS
from ddpsim.collectives.nccl_priors import PRIORS as NCCL_PRIORS

PRIORS: Mapping[str, tuple[Constant, ...]] = {
    "gloo": (*GLOO_PRIORS, *DDP_PRIORS["gloo"]),
    "nccl": (*NCCL_PRIORS, *DDP_PRIORS["nccl"]),
}
