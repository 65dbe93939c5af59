"""Every constant by backend, as it is without measurements: the transport's, and what DDP and its codecs cost on it."""

from __future__ import annotations

from collections.abc import Mapping

from ddpsim.collectives.codec_priors import CODEC_PRIORS
from ddpsim.collectives.constant import Constant
from ddpsim.collectives.ddp_priors import DDP_PRIORS
from ddpsim.collectives.gloo_priors import PRIORS as GLOO_PRIORS
from ddpsim.collectives.mpi_priors import PRIORS as MPI_PRIORS
from ddpsim.collectives.nccl_priors import PRIORS as NCCL_PRIORS
from ddpsim.collectives.rccl_priors import PRIORS as RCCL_PRIORS

PRIORS: Mapping[str, tuple[Constant, ...]] = {
    "gloo": (*GLOO_PRIORS, *DDP_PRIORS["gloo"], *CODEC_PRIORS["gloo"]),
    "nccl": (*NCCL_PRIORS, *DDP_PRIORS["nccl"], *CODEC_PRIORS["nccl"]),
    "mpi": (*MPI_PRIORS, *DDP_PRIORS["mpi"], *CODEC_PRIORS["mpi"]),
    "rccl": (*RCCL_PRIORS, *DDP_PRIORS["rccl"], *CODEC_PRIORS["rccl"]),
}
