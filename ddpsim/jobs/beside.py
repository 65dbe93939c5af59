"""Another job on the same fabric, as a YAML file says it: what it trains, on which nodes, and how it sends."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationError, field_validator, model_validator

from ddpsim.bucketing import BucketCaps
from ddpsim.documents import problems, raised, told
from ddpsim.documents.errors import shown
from ddpsim.documents.yaml_reading import line_of, read_mapping
from ddpsim.errors import InputError
from ddpsim.files import named, read_text
from ddpsim.jobs.job import Job
from ddpsim.jobs.job_options import Backend, Sync
from ddpsim.topology.bounds import MOST_GPUS, MOST_NODES
from ddpsim.workload import Workload
from ddpsim.workload.files import located, read_workload, workload_document

_START = "start with `workload:` and `nodes:`"

Cap = Annotated[float, Field(ge=0, le=1e9, strict=False)]
"""MiB."""


def _nodes(value: object) -> object:
    if type(value) is int and 1 <= value <= MOST_NODES:
        return value
    listed = isinstance(value, list) and all(type(each) is int and 0 <= each < MOST_NODES for each in value)
    if isinstance(value, list) and listed and 0 < len(value) == len(set(value)):
        return tuple(sorted(value))
    raise told(f"{shown(value)} is no number of nodes, nor a list of nodes named once each; write `nodes: 4` or [4, 5]")


class BesideSpec(BaseModel):
    """The YAML of a job beside; options have the names that they have in Python."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    workload: Annotated[str, Field(min_length=1)]
    nodes: Annotated[Any, PlainValidator(_nodes)]
    placement: Literal["after", "alternate"] = "after"
    gpus_per_node: Annotated[int, Field(ge=1, le=MOST_GPUS)] | None = None
    phase: Annotated[float, Field(ge=0, le=1, strict=False)] = 0.0
    bucket_cap_mb: Cap | None = None
    first_bucket_mb: Cap | None = None
    bucket_cap_mb_list: Annotated[list[Cap], Field(min_length=1)] | None = None
    gradient_as_bucket_view: bool = False
    broadcast_buffers: bool = True
    accumulate: Annotated[int, Field(ge=1, le=1 << 20)] = 1
    sync: Sync = "last"
    backend: Backend | None = None
    compression: str = "none"
    scheme: str = "ddp"
    overlap: Literal["on", "off"] = "on"

    @field_validator("overlap", mode="before")
    @classmethod
    def _yaml_switch(cls, value: object) -> object:
        """Take `on` and `off` without quotes too, which YAML reads as true and false."""
        return {True: "on", False: "off"}[value] if isinstance(value, bool) else value

    @model_validator(mode="after")
    def _agrees(self) -> BesideSpec:
        if self.placement == "alternate" and not isinstance(self.nodes, int):
            raise ValueError("`nodes` are listed and `placement: alternate` is given; keep one")
        return self

    def job(self) -> Job:
        """Return the job, whose options are checked.

        Raises:
            InputError: options that contradict each other.
        """
        listed = None if self.bucket_cap_mb_list is None else tuple(self.bucket_cap_mb_list)
        return Job(
            caps=BucketCaps(self.bucket_cap_mb, self.first_bucket_mb, listed),
            gradient_as_bucket_view=self.gradient_as_bucket_view,
            broadcast_buffers=self.broadcast_buffers,
            accumulate=self.accumulate,
            sync=self.sync,
            backend=self.backend,
            compression=self.compression,
            scheme=self.scheme,
            overlap=self.overlap,
        )


@dataclass(frozen=True, slots=True)
class JobBeside:
    """Another job, which trains for as long as the one that is asked about, on other nodes of the same machine.

    Attributes:
        workload: what one of its ranks computes, or its name as `Model.of` takes it.
        job: its options.
        nodes: how many it has, or which of the machine's.
        alternate: whether a count of nodes lies between those of the job asked about, every other one; else after them.
        gpus_per_node: of each of its nodes; None is all.
        phase: share of what it computes in a step by which it begins later.
        idle: whether it has its nodes and does nothing, so that the fabric is the other's alone.
        digest: of the workload's content, by which two of one name differ.
    """

    workload: Workload | str = field(repr=False, compare=False)
    job: Job
    nodes: int | tuple[int, ...]
    alternate: bool = False
    gpus_per_node: int | None = None
    phase: float = 0.0
    idle: bool = False
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        found, name = self.workload, ""
        if isinstance(found, str):
            name, path = found, located(found)[0]
            found = read_workload(path, name)
        said = json.dumps([name, workload_document(found)], default=str)
        object.__setattr__(self, "digest", hashlib.sha256(said.encode()).hexdigest()[:16])

    def share_of(self, workload: Workload) -> float:
        """Return what a rank of it computes in a step over what one of `workload` does; 1 where it is not loaded."""
        if isinstance(self.workload, str):
            return 1.0
        other_s, own_s = _computing_s(self.workload), _computing_s(workload)
        return other_s / own_s if own_s > 0 else 1.0


def _computing_s(workload: Workload) -> float:
    phases = (workload.forward, workload.backward, workload.optimizer)
    return sum(max(median(map(float, phase.host_s)), median(map(float, phase.device_s))) for phase in phases)


def job_beside(path: str, name: str) -> JobBeside:
    """Return the job that a YAML file describes.

    Args:
        path: of the file, `-` for standard input.
        name: of the option that names it.

    Raises:
        InputError: a file that cannot be read or is malformed, with every error in it, or a workload that is not known.
    """
    if Path(path).is_dir():
        raise InputError(f"{path} is a folder", place=name, remedy=f"give a job's YAML file; {_START}")
    content, place = read_text(path, InputError, f"give a job's YAML file; {_START}"), named(path)
    document = read_mapping(content, place, InputError, _START)
    try:
        spec = BesideSpec.model_validate(document)
    except ValidationError as error:
        found = problems(error, BesideSpec, line=lambda path: line_of(content, path))
        raise raised(found, place, InputError) from error
    try:
        job = spec.job()
        return JobBeside(spec.workload, job, spec.nodes, spec.placement == "alternate", spec.gpus_per_node, spec.phase)
    except InputError as error:
        error.at(place)
