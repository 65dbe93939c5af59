"""How GPUs of a model are joined by NVLink, for files that leave it out; taken from shipped machines."""

from __future__ import annotations

from collections.abc import Mapping

from ddpsim import shipped
from ddpsim.documents.yaml_reading import read_mapping
from ddpsim.errors import TopologyError, UnknownNameError
from ddpsim.topology.hardware import IMPORTED_MODELS, gpu_facts

_MACHINES = {
    ("GP100", 2): "2xgp100-nvlink",
    ("V100", 4): "p3.8xlarge",
    ("V100", 8): "dgx-1v",
    ("V100", 16): "dgx-2",
    ("A100", 4): "hgx-a100-4",
    ("A100", 8): "dgx-a100",
    ("H100", 8): "dgx-h100",
    ("GH200", 4): "gh200-quad",
}
_LIKE = {"H200": "H100"}
_PCIE = "-pcie"


def gpu_choices() -> list[str]:
    """Return the values of `gpu`: models, and with `-pcie` their forms without NVLink."""
    models = sorted(model.lower() for model in IMPORTED_MODELS)
    return models + [model.lower() + _PCIE for model in IMPORTED_MODELS if _has_nvlink(model)]


def _has_nvlink(model: str) -> bool:
    facts = gpu_facts(model)
    return facts is not None and facts.nvlinks > 0


def gpu_model(choice: str, place: str) -> str:
    """Return the model of a `gpu` value.

    Raises:
        UnknownNameError: where it is not among `gpu_choices`.
    """
    models = {model.lower(): model for model in IMPORTED_MODELS}
    name = choice.lower().removesuffix(_PCIE)
    if name not in models or choice.lower() not in gpu_choices():
        raise UnknownNameError.among("GPU", choice.lower(), gpu_choices(), place=place)
    return models[name]


def nvlink_layout(choice: str, count: int, place: str) -> Mapping[str, object]:
    """Return the `nvlink` or `nvswitch` part of a node of `count` GPUs; empty where they have no NVLink.

    Raises:
        TopologyError: where no shipped machine has so many of that model.
    """
    model = gpu_model(choice, place)
    if choice.lower().endswith(_PCIE) or not _has_nvlink(model) or count == 1:
        return {}
    machine = _MACHINES.get((_LIKE.get(model, model), count))
    if machine is None:
        raise TopologyError(
            f"no layout of NVLinks is known for {count} {model}",
            place=place,
            remedy=f"use `gpu={model.lower()}{_PCIE}` and add `nvlink` or `nvswitch` to the YAML by hand",
        )
    node = read_mapping(shipped.find("topology", machine).read_text(encoding="utf-8"), machine)["node"]
    return {key: node[key] for key in ("nvlink", "nvswitch") if isinstance(node, dict) and key in node}
