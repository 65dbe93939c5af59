"""The YAML file of another job on the same fabric: its options have the names that they have in Python."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationError, model_validator

from ddpsim.common.documents.errors import document_error, format_value, join_errors, problems
from ddpsim.common.documents.yaml_reading import line_of, read_mapping
from ddpsim.common.errors import InputError
from ddpsim.common.files import display_name, read_text
from ddpsim.common.options.keys import values_of, with_options
from ddpsim.common.options.option import build
from ddpsim.simulation.jobs.beside import JobBeside
from ddpsim.simulation.jobs.job_options import JobOptions
from ddpsim.topology.bounds import MOST_GPUS, MOST_NODES

_START = "start with `workload:` and `nodes:`"


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
    """The YAML of a job beside, but for the options of a job, which are keys too."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    workload: Annotated[str, Field(min_length=1)]
    nodes: Annotated[Any, PlainValidator(_nodes)]
    placement: Literal["after", "alternate"] = "after"
    gpus_per_node: Annotated[int, Field(ge=1, le=MOST_GPUS)] | None = None
    phase: Annotated[float, Field(ge=0, le=1, strict=False)] = 0.0

    @model_validator(mode="after")
    def _check_agreement(self) -> BesideSpec:
        if self.placement == "alternate" and not isinstance(self.nodes, int):
            raise ValueError("`nodes` are listed and `placement: alternate` is given; keep one")
        return self


_FILE = with_options(BesideSpec, JobOptions)


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
    document = read_mapping(content, place, InputError, _START, wanted="a job")
    try:
        spec = _FILE.model_validate(document)
    except ValidationError as error:
        found = problems(error, _FILE, line=lambda path: line_of(content, path))
        raise join_errors(found, place, InputError) from error
    try:
        job = build(JobOptions, values_of(spec, JobOptions))
        return JobBeside(spec.workload, job, spec.nodes, spec.placement == "alternate", spec.gpus_per_node, spec.phase)
    except InputError as error:
        error.at(place)
