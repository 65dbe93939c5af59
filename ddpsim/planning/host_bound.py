"""Whether the host holds a step up, and on which constants that verdict rests where nobody measured them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.constant import Constant
from ddpsim.prediction.predict import predict
from ddpsim.prediction.prediction import Prediction

HOST_COSTS = ("hook_s", "launch_s", "finish_s", "forward_s", "buffer_s")
"""Constants of DDP that are a GPU's host's time."""

_NO_TIME = 1e-9
"""Factor on the time of a host that takes none: a factor is above 0."""


def host_cost_s(prediction: Prediction, calibration: Calibration | None = None) -> float:
    """Return how much shorter a step would be on a host that takes no time for anything; 0 where there is one clock."""
    workload = prediction.workload
    if workload.one_clock:
        return 0.0
    backend = prediction.options.backend_for(workload)
    costs = _calibration(backend, calibration)
    names = [f"{backend}.ddp.{name}" for name in (*HOST_COSTS, "graph_s")]
    free = predict(
        workload,
        prediction.topology,
        nodes=prediction.nodes,
        gpus_per_node=prediction.placement.gpus_per_node,
        options=replace(prediction.options, scale_host=_NO_TIME),
        calibration=costs.with_values(dict.fromkeys(names, 0.0), source="a host that takes no time"),
        local_s=prediction.local_s,
        band=False,
        brief=True,
    )
    return max(0.0, prediction.iteration_s - free.iteration_s)


def launch_priors(backend: str, calibration: Calibration | None) -> list[Constant]:
    """Return the constants of the host's time that are priors, not measured."""
    constants = constants_in_force(backend, calibration)
    named = [constants[f"{backend}.ddp.{name}"] for name in HOST_COSTS]
    return [constant for constant in named if not constant.fitted]


def constants_in_force(backend: str, calibration: Calibration | None) -> Mapping[str, Constant]:
    """Return the constants of a calibration by name; None stands for the priors."""
    return _calibration(backend, calibration).constants


def _calibration(backend: str, calibration: Calibration | None) -> Calibration:
    return calibration or Calibration.priors(backend)
