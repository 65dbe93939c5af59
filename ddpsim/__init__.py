"""Predict the iteration latency of PyTorch DistributedDataParallel on hardware not bought yet.

What a script or a notebook needs stands here, imported when it is first asked for. A name or a path will do wherever a
workload, a machine or a calibration is taken:

>>> from ddpsim import predict
>>> predict("resnet50", "dgx-1v", nodes=2).nodes
2

Questions: `predict` one step, `sweep` caps and node counts, `plan` the best buckets, `compare` machines, `validate` a
prediction beside a measured run, `calibrate` constants by a measured table. `help(ddpsim.predict)` is of one of them.

What they take and return: `Workload`, `Topology`, `Options` of a job, `BucketCaps`, `BucketPlan`, `Calibration`,
`Prediction`; `InputError` is what cannot be. Files are read by `load_workload`, `load_topology`, `load_plan`,
`load_calibration`, `load_prediction`, `read_table` and `read_trace`, and `save_workload` writes one.
"""

# Nothing is imported here, `typing` neither: a command could not yet answer an interrupt.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    __version__: str
    from ddpsim.bucketing import BucketCaps, BucketPlan
    from ddpsim.calibrating.calibrate import calibrate
    from ddpsim.collectives.calibration import Calibration
    from ddpsim.collectives.calibration_file import load_calibration
    from ddpsim.errors import InputError
    from ddpsim.measured import read_table
    from ddpsim.planning.compare import compare
    from ddpsim.planning.plan_file import load_plan
    from ddpsim.planning.planner import plan
    from ddpsim.planning.sweep import sweep
    from ddpsim.prediction.document import load_prediction
    from ddpsim.prediction.named import predict
    from ddpsim.prediction.prediction import Prediction
    from ddpsim.simulation import Options
    from ddpsim.topology.cluster import Topology
    from ddpsim.topology.spec import load_topology
    from ddpsim.trace.json import read_trace
    from ddpsim.validation.validate import validate
    from ddpsim.workload.files import load_workload, save_workload
    from ddpsim.workload.profile import Workload

__all__ = [
    "BucketCaps",
    "BucketPlan",
    "Calibration",
    "InputError",
    "Options",
    "Prediction",
    "Topology",
    "Workload",
    "calibrate",
    "compare",
    "load_calibration",
    "load_plan",
    "load_prediction",
    "load_topology",
    "load_workload",
    "plan",
    "predict",
    "read_table",
    "read_trace",
    "save_workload",
    "sweep",
    "validate",
]

_MODULES = {
    "BucketCaps": "bucketing",
    "BucketPlan": "bucketing",
    "Calibration": "collectives.calibration",
    "InputError": "errors",
    "Options": "simulation",
    "Prediction": "prediction.prediction",
    "Topology": "topology.cluster",
    "Workload": "workload.profile",
    "calibrate": "calibrating.calibrate",
    "compare": "planning.compare",
    "load_calibration": "collectives.calibration_file",
    "load_plan": "planning.plan_file",
    "load_prediction": "prediction.document",
    "load_topology": "topology.spec",
    "load_workload": "workload.files",
    "plan": "planning.planner",
    "predict": "prediction.named",
    "read_table": "measured",
    "read_trace": "trace.json",
    "save_workload": "workload.files",
    "sweep": "planning.sweep",
    "validate": "validation.validate",
}
"""Where each name of `__all__` stands: `ddpsim --help` answers at once because none is imported before it is used."""


def __getattr__(name: str) -> "Any":
    """Import what `name` needs and return it."""
    import importlib

    if name == "__version__":
        return importlib.import_module("ddpsim.version").__version__
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    """Return the public names, without the modules that this one needs itself."""
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__})
