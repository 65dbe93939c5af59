"""What constants fitted to all ranks' allreduces are in a process group of fewer of them."""

from __future__ import annotations

from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.gloo_priors import GLOO_PRIORS
from ddpsim.common.operation import Operation

_LAUNCH = "gloo.launch_s"


def adapt_to_group(calibration: Calibration, world: int, ranks: int) -> Calibration:
    """Return `calibration`, fitted to a ring of `world` ranks, for one of `ranks`.

    One table cannot tell a launch from what each step of the ring takes beside its bytes, so that a fitted launch holds
    the steps' share too: a ring of fewer ranks takes as much less as it has fewer steps, and the call's prior at least.
    """
    launch = calibration.constants.get(_LAUNCH)
    if launch is None or not launch.measured or not 1 < ranks < world:
        return calibration
    least_s = next(each.value for each in GLOO_PRIORS if each.name == _LAUNCH)
    share = Operation.ALLREDUCE.steps(ranks) / Operation.ALLREDUCE.steps(world)
    value = min(launch.value, max(least_s, launch.value * share))
    return calibration.with_values({_LAUNCH: value}, source=f"{launch.source}, for groups of {ranks} ranks")
