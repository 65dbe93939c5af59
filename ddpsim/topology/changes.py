"""A node that names a shipped machine and changes some of it: what it leaves out is placed by the default."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_PLACED = ("switches", "slots")
_STATED = ("rings", "trees", "ring_bandwidth", "tree_bandwidth")


def changed(machine: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the node of `machine` with `changes`, both as the YAML has them.

    A `pcie` without switches and slots changes its other keys alone. Where GPUs or NICs are fewer, those that are
    there stay where they were; where they are more, the others stand in slots, spread evenly over the sockets. Rings
    and trees that were stated are of the machine's own devices, and are searched anew. What is malformed is left as it
    is, for the schema to name.
    """
    node = {**machine, **changes}
    pcie, own = changes.get("pcie"), machine.get("pcie")
    if isinstance(pcie, dict) and isinstance(own, dict) and not any(key in pcie for key in _PLACED):
        node["pcie"] = {**own, **pcie}
        if "generation" in pcie and "bandwidth" not in pcie:
            node["pcie"].pop("bandwidth", None)
    counts = _counts(node)
    if counts is None or counts == _counts(machine):
        return node
    for key in _STATED:
        if key not in changes:
            node.pop(key, None)
    gpus, nics = counts
    if isinstance(nvlink := node.get("nvlink"), dict) and "nvlink" not in changes:
        pairs = [pair for pair in nvlink.get("pairs", ()) if max(pair[:2]) < gpus]
        node["nvlink"] = {**nvlink, "pairs": pairs} if pairs else None
    if isinstance(own, dict) and not (isinstance(pcie, dict) and any(key in pcie for key in _PLACED)):
        node["pcie"] = _placed(node["pcie"], gpus, nics, _sockets(node))
    return node


def _counts(node: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return the GPUs and NICs of a node; None where it does not say them."""
    try:
        nics = sum(int(entry.get("count", 1)) for entry in node.get("nics") or ())
        return int(node["gpus"]["count"]), nics
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def _sockets(node: Mapping[str, Any]) -> int:
    cpu = node.get("cpu")
    sockets = cpu.get("sockets", 1) if isinstance(cpu, dict) else 1
    return sockets if isinstance(sockets, int) and sockets > 0 else 1


def _placed(pcie: Mapping[str, Any], gpus: int, nics: int, sockets: int) -> dict[str, Any]:
    """Return a PCIe tree of so many devices: those of `pcie`, and the others in slots."""
    tree = {key: [_kept(branch, gpus, nics) for branch in pcie.get(key, ())] for key in _PLACED}
    placed = [_numbers(branch) for key in _PLACED for branch in tree[key]]
    taken = {kind: {number for each in placed for number in each[kind]} for kind in ("gpus", "nics")}
    for socket in range(sockets):
        left = {
            kind: [number for number in range(most) if number not in taken[kind] and number * sockets // most == socket]
            for kind, most in (("gpus", gpus), ("nics", nics))
        }
        if any(left.values()):
            tree["slots"].append({"socket": socket, **left})
    devices = {
        name: width
        for name, width in pcie.get("devices", {}).items()
        if int(name[3:]) < (gpus if name.startswith("gpu") else nics)
    }
    return {**pcie, **tree, "devices": devices}


def _kept(branch: Mapping[str, Any], gpus: int, nics: int) -> dict[str, Any]:
    """Return a branch of the tree without the devices that are not there."""
    ports = [[nic for nic in (entry if isinstance(entry, list) else [entry]) if nic < nics] for entry in _nics(branch)]
    return {
        **branch,
        "gpus": [gpu for gpu in branch.get("gpus", ()) if gpu < gpus],
        "nics": [each for each in ports if each],
        "switches": [_kept(inner, gpus, nics) for inner in branch.get("switches", ())],
    }


def _nics(branch: Mapping[str, Any]) -> list[Any]:
    nics = branch.get("nics", [])
    return nics if isinstance(nics, list) else [nics]


def _numbers(branch: Mapping[str, Any]) -> dict[str, set[int]]:
    inner = [_numbers(each) for each in branch["switches"]]
    own = {"gpus": set(branch["gpus"]), "nics": {nic for entry in branch["nics"] for nic in entry}}
    return {kind: own[kind].union(*(each[kind] for each in inner)) for kind in own}
