"""The YAML file of another job on the same fabric: its options have the names that they have in Python."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationError, field_validator, model_validator

from ddpsim.bucketing import BucketCaps
from ddpsim.documents import document_error, problems, raised
from ddpsim.documents.errors import format_value
from ddpsim.documents.yaml_reading import line_of, read_mapping
from ddpsim.errors import InputError
from ddpsim.files import display_name, read_text
from ddpsim.jobs.beside import JobBeside
from ddpsim.jobs.job import Job
from ddpsim.jobs.job_options import Backend, Sync
from ddpsim.topology.bounds import MOST_GPUS, MOST_NODES

_START = "start with `workload:` and `nodes:`"

Cap = Annotated[float, Field(ge=0, le=1e9, strict=False)]
"""MiB."""


def _nodes(value: object) -> object:
    if type(value) is int and 1 <= value <= MOST_NODES:
        return value
    listed = isinstance(value, list) and all(type(each) is int and 0 <= each < MOST_NODES for each in value)
    if isinstance(value, list) and listed and 0 < len(value) == len(set(value)):
        return tuple(sorted(value))
    raise document_error(
        f"{format_value(value)} is no number of nodes, nor a list of nodes named once each; write `nodes: 4` or [4, 5]"
    )


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
    content, place = read_text(path, InputError, f"give a job's YAML file; {_START}"), display_name(path)
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
