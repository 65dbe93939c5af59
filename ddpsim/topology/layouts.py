"""Which GPUs an importer may take a file's for, and how GPUs of a model are joined where the file leaves it out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

from ddpsim.common import shipped
from ddpsim.common.documents.yaml_reading import read_mapping
from ddpsim.common.errors import TopologyError, UnknownNameError, list_few
from ddpsim.topology.gpus.table import GpuSpec, find_shipped_gpu, names
from ddpsim.topology.hardware import gcn_of, gpu_facts, list_known_models

_MACHINES = {
    ("GP100", 2): "2xgp100-nvlink",
    ("V100", 4): "p3.8xlarge",
    ("V100", 8): "dgx-1v",
    ("V100", 16): "dgx-2",
    ("A100", 4): "hgx-a100-4",
    ("A100", 8): "dgx-a100",
    ("H100", 8): "dgx-h100",
    ("GH200", 4): "gh200-quad",
    ("B200", 8): "dgx-b200",
    ("B300", 8): "dgx-b300",
    ("MI250X", 8): "mi250x-4",
    ("MI300X", 8): "mi300x-8",
    ("MI325X", 8): "mi325x-8",
    ("MI355X", 8): "mi355x-8",
}
_LIKE = {"H200": "H100", "H20": "H100", "H800": "H100", "A800": "A100"}
"""Models of which eight hang on switches as another's do, each by its own number of links."""
_PCIE = "-pcie"
_MOST_NAMED = 20
"""GPUs that an error names; of more, the first."""


@cache
def _models() -> Mapping[str, str]:
    return {model.lower(): model for model in sorted(list_known_models())}


def gpu_choices() -> list[str]:
    """Return the values of `gpu`: every GPU that is known, and with `-pcie` boards' GPUs without their NVLinks."""
    bare = [name + _PCIE for name, model in _models().items() if _board_links(model)]
    return list(dict.fromkeys([*_models(), *bare]))


def find_gpus(fits: Callable[[GpuSpec], bool]) -> tuple[list[str], str | None]:
    """Return the names of the GPUs whose file in `gpus/` fits, and of which kind all of them are, where they are."""
    fitting = [spec for spec in map(find_shipped_gpu, names()) if spec is not None and fits(spec)]
    kinds = {spec.kind for spec in fitting}
    return [spec.name for spec in fitting], kinds.pop() if len(kinds) == 1 else None


def ask_for_gpu(what: str, place: str, fitting: list[str]) -> TopologyError:
    """Return the error of a file that does not say which GPU it is of: `gpu` has to, one of `fitting` most likely."""
    named = list_few([name.lower() for name in fitting], _MOST_NAMED) or "the names in gpus/"
    return TopologyError(what, place=place, remedy=f"say `gpu`, one of {named}")


def _board_links(model: str) -> int:
    facts = gpu_facts(model)
    return 0 if facts is None else facts.nvlinks


def gpu_model(choice: str, place: str) -> str:
    """Return the model of a `gpu` value.

    Raises:
        UnknownNameError: where it is not among `gpu_choices`.
    """
    name = choice.lower()
    if name not in gpu_choices():
        raise UnknownNameError.among("GPU", name, gpu_choices(), place=place)
    return _models().get(name) or _models()[name.removesuffix(_PCIE)]


def gpu_layout(choice: str, count: int, place: str) -> Mapping[str, object]:
    """Return the `nvlink`, `nvswitch` or `xgmi` part of a node of `count` GPUs; empty where they have no such links.

    Raises:
        TopologyError: where NVLinks join them and no shipped machine has so many.
    """
    model = gpu_model(choice, place)
    spec = find_shipped_gpu(model)
    kind = model if spec is None else spec.kind
    links = _board_links(model)
    machine = _MACHINES.get((_LIKE.get(kind, kind), count))
    if choice.lower().endswith(_PCIE) or count == 1 or not (links or gcn_of(model)):
        return {}
    node = (
        {} if machine is None else read_mapping(shipped.find("topology", machine).read_text("utf-8"), machine)["node"]
    )
    assert isinstance(node, dict)
    layout = {key: node[key] for key in ("nvlink", "nvswitch", "xgmi") if key in node}
    if kind in _LIKE:
        layout = {"nvswitch": {**layout["nvswitch"], "links_per_gpu": links}} if "nvswitch" in layout else {}
    if links and not layout:
        raise TopologyError(
            f"no layout of NVLinks is known for {count} {model}",
            place=place,
            remedy=f"use `gpu={model.lower()}{_PCIE}` and add `nvlink` or `nvswitch` to the YAML by hand",
        )
    return layout
