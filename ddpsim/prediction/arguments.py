"""From Python: names and paths where workloads, machines and calibrations are taken, one where several are.

`predict`, `plan`, `sweep` and `compare` take what people have at hand, `plan("resnet50", "dgx-1v", nodes=4)`.
"""

from __future__ import annotations

import functools
import inspect
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, ParamSpec, TypeVar

from ddpsim.bucketing import BucketCaps
from ddpsim.collectives.calibration import Calibration
from ddpsim.common.errors import InputError
from ddpsim.common.options.option import check_at_least_one
from ddpsim.prediction.models import Model
from ddpsim.simulation.job import Job
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.topology.declared import Cluster
from ddpsim.topology.spec import load_topology
from ddpsim.workload import Workload
from ddpsim.workload.files import load_workload

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")


def take_names(function: Callable[Arguments, Answer]) -> Callable[Arguments, Answer]:
    """Return `function`, which takes objects, so that it takes names and paths for them too.

    An argument is converted by its parameter's name (`_TAKEN`): a name or path is loaded, unless the function is
    annotated to take `str` itself; a wrong kind raises InputError. Type checkers see the function as it is written;
    `help` shows that names may be given (`_SHOWN`).
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def converting(*positional: Arguments.args, **by_name: Arguments.kwargs) -> Answer:
        bound = signature.bind(*positional, **by_name)
        for name, value in bound.arguments.items():
            if name in _TAKEN:
                wanted = str(signature.parameters[name].annotation)
                bound.arguments[name] = _TAKEN[name](name, value, wanted)
        return function(*bound.args, **bound.kwargs)

    shown = [
        each.replace(annotation=_SHOWN.get(each.annotation, each.annotation)) for each in signature.parameters.values()
    ]
    converting.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
    return converting


def _is_name(value: object) -> bool:
    return isinstance(value, (str, os.PathLike))


def _of_kind(
    kinds: tuple[type, ...], what: str, remedy: str, load: Callable[[str], object] | None = None
) -> Callable[[str, Any, str], Any]:
    """Return a converter that takes values of `kinds`, and names and paths where `load` reads those from files."""

    def check(name: str, value: Any, wanted: str) -> Any:
        if load is not None and _is_name(value):
            return os.fspath(value) if "str" in wanted else load(os.fspath(value))
        if not isinstance(value, kinds) and type(value).__name__ not in wanted:
            raise InputError(f"{_format_value(value)} is no {what}", place=name, remedy=remedy)
        return value

    return check


def _count(name: str, value: Any, wanted: str) -> Any:
    del wanted
    if value is not None and (isinstance(value, bool) or not hasattr(value, "__index__")):
        raise InputError(
            f"{_format_value(value)} is not a count", place=name, remedy=f"give a whole number, e.g. `{name}=4`"
        )
    return None if value is None else value.__index__()


def _batch_size(name: str, value: Any, wanted: str) -> Any:
    count = _count(name, value, wanted)
    if count is not None:
        check_at_least_one(name, count)
    return count


def _number(name: str, value: Any, wanted: str) -> Any:
    if value is None and wanted.endswith("None"):
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise InputError(f"{_format_value(value)} is no number above 0", place=name, remedy="give e.g. 0.8, or 1281167")
    return value


def _link_rates(name: str, value: Any, wanted: str) -> Any:
    """Return rates as they are typed, or pairs of a link and its bytes per second."""
    del wanted
    for each in () if isinstance(value, str) else value if isinstance(value, Iterable) else [value]:
        named = isinstance(each, tuple) and len(each) == 2 and isinstance(each[0], str)
        if each is not None and not named:
            raise InputError(
                f"{_format_value(each)} is no link with its rate", place=name, remedy="give e.g. '25,100Gb/s'"
            )
        if each is not None:
            _number(name, each[1], "float")
    return value


def _cap(name: str, value: Any, wanted: str) -> Any:
    del wanted
    if isinstance(value, BucketCaps):
        return value
    if value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)):
        return BucketCaps(bucket_cap_mb=value)
    raise InputError(
        f"{_format_value(value)} is no bucket cap", place=name, remedy="give MiB, e.g. 25, or `BucketCaps`"
    )


def _load_calibration(path: str) -> Calibration:
    from ddpsim.collectives.calibration_file import load_calibration

    return load_calibration(path)


def _accept_several(one: Callable[[str, Any, str], Any]) -> Callable[[str, Any, str], Any]:
    """Return a converter that takes one or several of what `one` takes."""

    def several(name: str, value: Any, wanted: str) -> Any:
        alone = _is_name(value) or isinstance(value, (Workload, Cluster, BucketCaps)) or not isinstance(value, Iterable)
        if value is None and wanted.endswith("None"):
            return None
        return tuple(one(name, each, wanted) for each in ((value,) if alone else value))

    return several


def _nodes(name: str, value: Any, wanted: str) -> Any:
    return (_accept_several(_count) if "Sequence" in wanted else _count)(name, value, wanted)


def _format_value(value: object) -> str:
    return f"{value!r}" if isinstance(value, (str, int, float, bool, type(None))) else f"a `{type(value).__name__}`"


_MODEL = "give a name that `ddpsim workload list` shows, a file's path, or a `Workload`"
_one_workload = _of_kind((Workload,), "workload", _MODEL, load_workload)


def _workload(name: str, value: Any, wanted: str) -> Any:
    if "Sequence[Job]" in wanted and isinstance(value, Iterable) and not _is_name(value):
        jobs = tuple(value)
        for each in jobs:
            if not isinstance(each, Job):
                remedy = "give jobs alone, e.g. `Job('resnet50', 'dgx-1v', nodes=2)`"
                raise InputError(f"{_format_value(each)} is no job", place=name, remedy=remedy)
        return jobs
    return _one_workload(name, value, wanted)


MACHINE = "give a name that `ddpsim topo list` shows, a file's path, or a `Topology`"
_topology = _of_kind((Cluster,), "machine", MACHINE, load_topology)
_text = _of_kind((str, type(None)), "text", "give a text")

_TAKEN: Mapping[str, Callable[[str, Any, str], Any]] = {
    "workload": _workload,
    "workloads": _accept_several(_workload),
    "topology": _topology,
    "topologies": _accept_several(_topology),
    "nodes": _nodes,
    "gpus_per_node": _count,
    "batch_sizes": _accept_several(_batch_size),
    "precisions": _accept_several(_text),
    "schemes": _accept_several(_text),
    "caps": _accept_several(_cap),
    "link_rates": _link_rates,
    "prices": _of_kind((Mapping,), "prices by machine", "give them by machine, e.g. {'dgx-a100': '32.77USD/h'}"),
    "samples_per_epoch": _number,
    "efficiency": _number,
    "options": _of_kind((Options, type(None)), "`Options`", "give e.g. `Options(caps=BucketCaps(bucket_cap_mb=25))`"),
    "calibration": _of_kind(
        (Calibration, type(None)), "calibration", "give a file's path, or a `Calibration`", _load_calibration
    ),
}
"""Converters by the name of a parameter."""

_SHOWN = {
    "Workload | str | Model": "Workload | str",
    "Workload | str | Model | Job | Sequence[Job]": "Workload | str | Job | Sequence[Job]",
    "Topology": "Topology | str",
    "Topology | None": "Topology | str | None",
    "Calibration | None": "Calibration | str | None",
    "Sequence[str | Workload]": "Sequence[Workload | str] | Workload | str",
    "Sequence[Topology]": "Sequence[Topology | str] | Topology | str",
    "Sequence[str | Topology]": "Sequence[Topology | str] | Topology | str",
    "Sequence[int | None]": "Sequence[int] | int | None",
    "Sequence[str | None]": "Sequence[str] | str | None",
    "Sequence[str] | None": "Sequence[str] | str | None",
    "Sequence[BucketCaps]": "Sequence[BucketCaps | float] | BucketCaps | float",
    "Sequence[BucketCaps] | None": "Sequence[BucketCaps | float] | BucketCaps | float | None",
}
"""By annotation, the wider one that `help` shows, with names and paths as `str`."""


_OF_JOB = {each.name: str(each.type) for each in fields(Job)} | {"workload": "Workload | str | Model"}
"""By field of a `Job`, the annotation by which its value is converted."""


def on_own_gpus(jobs: Sequence[Job]) -> Iterator[Job]:
    """Yield jobs with names and paths loaded, each once, and each workload put on the machine's own GPU.

    Next on the path of a prediction: `models.py` for the GPU, then `predict.py`.
    """

    def take(name: str, value: Any) -> Any:
        return _TAKEN[name](name, value, _OF_JOB[name])

    load, models = functools.cache(take), dict[tuple[object, bool], Model]()
    for original in jobs:
        values = {name: getattr(original, name) for name in _OF_JOB}
        loaded = {name: (load if _is_name(value) else take)(name, value) for name, value in values.items()}
        job = replace(original, **loaded | {"options": loaded["options"] or Options()})
        workload: Any = job.workload
        # Jobs of one workload share its model, which estimates each GPU once.
        which = workload if isinstance(workload, str) else id(workload), job.options.keep_pace
        if which not in models:
            models[which] = Model.of(workload, job.options)
        yield replace(job, workload=models[which].on(job.topology, options=job.options))
