"""The constants of RCCL's transport without measurements: NCCL's of the same name, where AMD's links do not differ.

Their meaning is that of NCCL's (`transport_priors.py`), with xGMI in place of NVLink and no reduction in a switch.
"""

from __future__ import annotations

from functools import partial

from ddpsim.collectives.constant import Constant, constant_as
from ddpsim.collectives.transport_priors import NCCL_PRIORS
from ddpsim.collectives.transport_priors import by_protocol

_SOURCE = (
    "ROCm/rccl src/graph/tuning.cc @9e22c79d (hwLat, baseLat); within what the tables of the fitted half allow; "
    "`python -m studies.amd`"
)
_NVLINKS = ("hop.nvlink", "hop.nvswitch", "efficiency.nvlink", "efficiency.nvswitch", "hopper", "pull", "nvls")
_NOT_RCCLS = ("version", *_NVLINKS, "ll_max_share")
_AAC8 = "one node of eight MI300X, 1 to 8 MiB (studies/amd/tables/aac8_mi300x_1node.csv)"


_OWN = (
    Constant("rccl.version", 2026, "1", "the version of NCCL that the RCCL modelled follows, major * 1000 + minor"),
    *by_protocol("rccl.start.{}_s", "s", (12.0, 12.0, 17.0), _SOURCE),
    *by_protocol("rccl.ring.hop.xgmi.{}_s", "s", (0.8, 0.8, 2.1), _SOURCE),
    *by_protocol("rccl.tree.hop.xgmi.{}_s", "s", (0.9, 0.9, 2.3), _SOURCE),
    *by_protocol("rccl.ring.hop.net.{}_s", "s", (9.5, 9.5, 15.1), _SOURCE),
    *by_protocol("rccl.tree.hop.net.{}_s", "s", (10.5, 10.5, 25.0), _SOURCE),
    *by_protocol("rccl.efficiency.xgmi.{}", "1", (0.25, 0.75, 0.93), f"by hand; Simple: {_AAC8}", 0.25),
    Constant("rccl.pairs.start_s", 20e-6, "s", f"MSCCL's all-pairs schedules, by hand: {_AAC8}", log_std=0.4),
    Constant("rccl.pairs.efficiency", 0.7, "1", f"of xGMI's rate by the same: {_AAC8}", log_std=0.2),
)
_NAMED = {constant.name for constant in _OWN}
RCCL_PRIORS: tuple[Constant, ...] = (
    *_OWN,
    # NCCL's constants that mean the same of RCCL, as its own.
    *(
        each
        for each in map(partial(constant_as, "nccl", "rccl"), NCCL_PRIORS)
        if each.name not in _NAMED and not any(part in each.name for part in _NOT_RCCLS)
    ),
)
