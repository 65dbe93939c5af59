"""The constants of RCCL's transport without measurements: NCCL's of the same name, where AMD's links do not differ.

Their meaning is that of NCCL's (`nccl_priors.py`), with xGMI in place of NVLink and no reduction in a switch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ddpsim.collectives.constant import Constant
from ddpsim.collectives.nccl_priors import PRIORS as NCCL_PRIORS

_TUNING = "ROCm/rccl src/graph/tuning.cc @9e22c79d (hwLat, baseLat)"
_TABLES = "within what the tables of the fitted half allow; `python -m studies.amd`"
_NVLINKS = ("hop.nvlink", "hop.nvswitch", "efficiency.nvlink", "efficiency.nvswitch", "hopper", "pull", "nvls")
_NOT_RCCLS = ("version", *_NVLINKS, "ll_max_share")
_AAC8 = "one node of eight MI300X, 1 to 8 MiB (studies/amd/tables/aac8_mi300x_1node.csv)"
_PROTOCOLS = ("ll", "ll128", "simple")


def _list_shared_with_nccl() -> Iterator[Constant]:
    """Yield NCCL's constants that mean the same of RCCL, as its own."""
    for constant in NCCL_PRIORS:
        name = constant.name.removeprefix("nccl.")
        if not any(part in name for part in _NOT_RCCLS):
            yield replace(constant, name=f"rccl.{name}", source=f"as NCCL's: {constant.source}")


def _row(name: str, unit: str, scale: float, values: tuple[float, float, float], log_std: float) -> list[Constant]:
    return [
        Constant(f"rccl.{name.format(protocol)}", value * scale, unit, f"{_TUNING}; {_TABLES}", log_std=log_std)
        for protocol, value in zip(_PROTOCOLS, values, strict=True)
    ]


_OWN = (
    Constant("rccl.version", 2026, "1", "the version of NCCL that the RCCL modelled follows, major * 1000 + minor"),
    *_row("start.{}_s", "s", 1e-6, (12.0, 12.0, 17.0), 0.5),
    *_row("ring.hop.xgmi.{}_s", "s", 1e-6, (0.8, 0.8, 2.1), 0.5),
    *_row("tree.hop.xgmi.{}_s", "s", 1e-6, (0.9, 0.9, 2.3), 0.5),
    *_row("ring.hop.net.{}_s", "s", 1e-6, (9.5, 9.5, 15.1), 0.5),
    *_row("tree.hop.net.{}_s", "s", 1e-6, (10.5, 10.5, 25.0), 0.5),
    *(
        Constant(f"rccl.efficiency.xgmi.{protocol}", value, "1", f"by hand; Simple: {_AAC8}", log_std=0.25)
        for protocol, value in zip(_PROTOCOLS, (0.25, 0.75, 0.93), strict=True)
    ),
    Constant("rccl.pairs.start_s", 20e-6, "s", f"MSCCL's all-pairs schedules, by hand: {_AAC8}", log_std=0.4),
    Constant("rccl.pairs.efficiency", 0.7, "1", f"of xGMI's rate by the same: {_AAC8}", log_std=0.2),
)
_NAMED = {constant.name for constant in _OWN}
PRIORS: tuple[Constant, ...] = (
    *_OWN,
    *(constant for constant in _list_shared_with_nccl() if constant.name not in _NAMED),
)
