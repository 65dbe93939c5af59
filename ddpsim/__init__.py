"""Predict the iteration latency of PyTorch DistributedDataParallel on hardware not bought yet.

What a script or a notebook needs stands here, imported when it is first asked for. A name or a path will do wherever a
workload, a machine or a calibration is taken:

>>> from ddpsim import predict
>>> predict("resnet50", "dgx-1v", nodes=2).nodes
2

Questions; `help(ddpsim.predict)` and its like say what each argument is, and what stands for "...":

    predict(workload, topology, nodes=, options=, ...)         one step: a Prediction; or predict(job), predict(jobs)
    sweep(workload, topology, nodes=, caps=, ...)              bucket caps and node counts: a list of Predictions
    plan(workload, topologies, nodes=, ...)                    the best buckets on each machine
    compare(workloads, topologies, nodes=, batch_sizes=, ...)  machines before one is bought
    validate(prediction, measured)                             a prediction beside a measured run
    calibrate(tables, topology, nodes=, ...)                   constants by measured tables: a Calibration

What they take and return; `help(ddpsim.Options)` and its like say what each has:

    Job                      all that a prediction rests on: workload, topology, nodes, options, calibration
    Workload                 one rank's iterations without communication; Topology: the machine
    Options, BucketCaps      of a job; BucketPlan: which gradients share a bucket
    Prediction, Calibration  what is predicted, and what was measured
    InputError               what cannot be: the value, its place and the remedy

Files are read by `load_workload`, `load_topology`, `load_plan`, `load_calibration`, `load_prediction`, `read_table` and
`read_trace`, and `save_workload` writes one.
"""

# Nothing is imported here, `typing` neither: a command could not yet answer an interrupt.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    __version__: str
    from ddpsim.bucketing import BucketCaps as BucketCaps
    from ddpsim.bucketing import BucketPlan as BucketPlan
    from ddpsim.calibrating.calibrate import calibrate as calibrate
    from ddpsim.calibrating.measured import read_table as read_table
    from ddpsim.collectives.calibration import Calibration as Calibration
    from ddpsim.collectives.calibration_file import load_calibration as load_calibration
    from ddpsim.common.errors import InputError as InputError
    from ddpsim.planning.compare import compare as compare
    from ddpsim.planning.plan_file import load_plan as load_plan
    from ddpsim.planning.planner import plan as plan
    from ddpsim.planning.sweep import sweep as sweep
    from ddpsim.planning.validate import validate as validate
    from ddpsim.prediction.document import load_prediction as load_prediction
    from ddpsim.prediction.named import predict as predict
    from ddpsim.prediction.prediction import Prediction as Prediction
    from ddpsim.simulation.job import Job as Job
    from ddpsim.simulation.jobs.simulated import Options as Options
    from ddpsim.topology.cluster import Topology as Topology
    from ddpsim.topology.spec import load_topology as load_topology
    from ddpsim.trace.json import read_trace as read_trace
    from ddpsim.workload.files import load_workload as load_workload
    from ddpsim.workload.files import save_workload as save_workload
    from ddpsim.workload.profile import Workload as Workload

_MODULES = {
    "BucketCaps": "bucketing",
    "BucketPlan": "bucketing",
    "Calibration": "collectives.calibration",
    "InputError": "common.errors",
    "Job": "simulation.job",
    "Options": "simulation.jobs.simulated",
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
    "read_table": "calibrating.measured",
    "read_trace": "trace.json",
    "save_workload": "workload.files",
    "sweep": "planning.sweep",
    "validate": "planning.validate",
}
"""Where each name stands: `ddpsim --help` answers at once because none is imported before it is used."""
# [Note: no `__all__`] With one, `help(ddpsim)` prints every member of every class, 1,369 lines; the docstring above
# lists the names by what they are for instead. Whoever else looks for one, as `from ddpsim import *`, has it.


def __getattr__(name: str) -> "Any":
    """Import what `name` needs and return it."""
    import importlib
    import sys

    if name == "__version__":
        return importlib.import_module("ddpsim.common.version").__version__
    if name == "__all__" and sys._getframe(1).f_globals.get("__name__") != "pydoc":
        return [*_MODULES]
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    """Return the public names, without the modules that this one needs itself."""
    return sorted({*(name for name in globals() if name.startswith("__")), *_MODULES})
