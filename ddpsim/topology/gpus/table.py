"""The table of GPUs: what data sheets say of each, a YAML file for one, shipped or a user's own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, ClassVar

from ddpsim.common import shipped
from ddpsim.common.compiled import read_compiled
from ddpsim.common.documents.fields import Bandwidth, Bounds, OneOf, Parsed
from ddpsim.common.errors import InputError
from ddpsim.common.files import read_text
from ddpsim.common.units import parse_arithmetic, parse_size

PRECISIONS = ("fp32", "tf32", "amp", "bf16")
FIRST_WITH_BF16 = 80
"""Compute capability, times ten, from which matrix units take bfloat16."""

_Size = Annotated[float, Parsed(parse_size, lambda size: f"{size:.12g}B")]
_Peak = Annotated[float, Parsed(parse_arithmetic, lambda peak: f"{peak / 1e12:.12g}TFLOP/s")]

_EXAMPLE = "e.g. `memory_bandwidth: 1792GB/s` and `peaks: {fp32: 126TFLOP/s, amp: 504TFLOP/s}`"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpec:
    """One GPU, as its data sheet describes it, and its file with units.

    Attributes:
        name: as topologies and workloads name it.
        model: what topologies call its kind, where this is a form of it (`A100` of `A100-80GB`).
        driver: words that its driver's name has; the entry with the most of them is the GPU.
        architecture: `Ampere`, ...
        sm: compute capability times ten, 86 for 8.6.
        gcn: AMD's name of the architecture, `gfx942`; None for another vendor's GPU.
        memory, memory_bandwidth: of the device, in bytes and bytes per second.
        cache: second-level, in bytes: by architecture in NVIDIA's papers, by form in the TechPowerUp GPU database.
        multiprocessors: enabled ones.
        peaks: dense operations per second by precision; 16-bit ones accumulate in fp32, as torch does.
        pcie: generation.
        nvlinks: of the board that it is soldered to, 0 where it has none.
        bridge_links: NVLinks that bridges to other cards give it, 0 where there are no bridges.
        peer_to_peer: False where transfers between two of them go through host memory.
        sources: where the figures are from, the one named first in what is estimated with them.
        confidence: `high` where a vendor's figure was seen and agrees with units times clock.
        notes: doubts, and what contradicts.
    """

    EXTRA: ClassVar = "forbid"

    name: str
    model: str | None = None
    driver: tuple[str, ...] = ()
    architecture: str | None = None
    sm: Annotated[int, Bounds(ge=10, le=999)] | None = None
    gcn: Annotated[str, Bounds(pattern=r"^gfx[0-9]{2}[0-9a-f]{1,2}$")] | None = None
    memory: _Size | None = None
    memory_bandwidth: Bandwidth
    cache: _Size | None = None
    multiprocessors: Annotated[int, Bounds(ge=1)] | None = None
    peaks: Annotated[Mapping[Annotated[str, OneOf(PRECISIONS)], _Peak], Bounds(min_length=1)]
    pcie: Annotated[int, Bounds(ge=1, le=6)] | None = None
    nvlinks: Annotated[int, Bounds(ge=0)] = 0
    bridge_links: Annotated[int, Bounds(ge=0)] = 0
    peer_to_peer: bool = True
    sources: Annotated[tuple[str, ...], Bounds(min_length=1)] = ("given by the user",)
    confidence: str = "as its source"
    notes: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """What topologies call GPUs of its kind."""
        return self.model or self.name


@cache
def names() -> tuple[str, ...]:
    """Return the names of the shipped GPUs, sorted; no file is read."""
    return tuple(shipped.names("gpu"))


@cache
def find_shipped_gpu(name: str) -> GpuSpec | None:
    """Return the shipped GPU called `name`, in any case; None where there is none."""
    exact = next((known for known in names() if known.lower() == name.lower()), None)
    return None if exact is None else read_compiled(shipped.path("gpu", exact), read_gpu)


def read_gpu(path: str | Path) -> GpuSpec:
    """Return the GPU that a user's YAML file describes.

    Raises:
        InputError: a file that cannot be read, is malformed, or lacks the bandwidth or every peak.
    """
    from ddpsim.common.documents.yaml_reading import read_mapping

    text = read_text(path, InputError, "give a GPU's YAML file, " + _EXAMPLE)
    return gpu_from(
        read_mapping(text, str(path), InputError, "start with `name:`, " + _EXAMPLE, wanted="a GPU"), str(path), text
    )


def gpu_from(document: Mapping[str, object], place: str, text: str = "") -> GpuSpec:
    """Return the GPU that `document` describes; without a bf16 peak it has that of amp, from Ampere on.

    Args:
        document: keys as `GpuSpec` has them.
        place: what names it in errors.
        text: the YAML it is from, for lines in errors.

    Raises:
        InputError: a key missing, unknown or of the wrong kind; all of them are named.
    """
    from ddpsim.common.documents.records import read_as

    spec = read_as(GpuSpec, document, place, InputError, "write " + _EXAMPLE, text)
    if "amp" in spec.peaks and "bf16" not in spec.peaks and (spec.sm is None or spec.sm >= FIRST_WITH_BF16):
        spec = replace(spec, peaks={**spec.peaks, "bf16": spec.peaks["amp"]})
    return spec


_PART_OF_A_GPU = {"mig", "laptop", "mobile"}


def find_by_driver_name(driver_name: str) -> GpuSpec | None:
    """Return the GPU that its driver calls `driver_name`; None for one that is not in the table.

    A laptop's GPU bears the name of a larger one, an instance of a partitioned GPU that of the whole: neither is it.
    """
    words = set(_words(driver_name))
    if words & _PART_OF_A_GPU or ("max" in words and "pro" not in words):
        return None
    best = max(_find_matches(words), key=lambda match: match[0], default=None)
    return None if best is None else best[1]


def _find_matches(words: set[str]) -> Iterator[tuple[int, GpuSpec]]:
    for spec in filter(None, map(find_shipped_gpu, names())):
        for known in map(_words, spec.driver):
            if words.issuperset(known):
                yield len(known), spec


def _words(name: str) -> list[str]:
    return re.split(r"[\s/_-]+", name.lower())
