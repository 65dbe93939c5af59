"""The YAML of a GPU as a pydantic model: strict kinds, units required, unknown keys refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ddpsim.documents.errors import join_errors, problems, quantity
from ddpsim.documents.yaml_reading import line_of
from ddpsim.errors import InputError
from ddpsim.units import parse_arithmetic, parse_bandwidth, parse_size

Bandwidth = Annotated[float, quantity(parse_bandwidth)]
Size = Annotated[float, quantity(parse_size)]
Peak = Annotated[float, quantity(parse_arithmetic)]


class GpuFile(BaseModel):
    """A GPU's file; what each key means, `ddpsim.gpus.table.GpuSpec` says."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, defer_build=True)

    name: str
    model: str | None = None
    driver: list[str] = []
    architecture: str | None = None
    sm: Annotated[int, Field(ge=10, le=999)] | None = None
    gcn: Annotated[str, Field(pattern=r"^gfx[0-9]{2}[0-9a-f]{1,2}$")] | None = None
    memory: Size | None = None
    memory_bandwidth: Bandwidth
    cache: Size | None = None
    multiprocessors: Annotated[int, Field(ge=1)] | None = None
    peaks: Annotated[dict[Literal["fp32", "tf32", "amp", "bf16"], Peak], Field(min_length=1)]
    pcie: Annotated[int, Field(ge=1, le=6)] | None = None
    nvlinks: Annotated[int, Field(ge=0)] = 0
    bridge_links: Annotated[int, Field(ge=0)] = 0
    peer_to_peer: bool = True
    sources: Annotated[list[str], Field(min_length=1)] = ["given by the user"]
    confidence: str = "as its source"
    notes: list[str] = []


def check_gpu(document: Mapping[str, object], place: str, text: str, example: str) -> dict[str, Any]:
    """Return the keys of a GPU's file with their values, quantities as numbers.

    Args:
        place: what names it in errors.
        text: the YAML it is from, for lines in errors.
        example: of what to write, for errors.

    Raises:
        InputError: a key missing, unknown or of the wrong kind; all of them are named.
    """
    try:
        return dict(GpuFile.model_validate(document))
    except ValidationError as error:
        found = problems(error, GpuFile, line=(lambda path: line_of(text, path)) if text else None)
        raise join_errors(found, place, InputError, "write " + example) from None
