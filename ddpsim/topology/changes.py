"""A node that names a shipped machine and changes some of it: what it leaves out is placed by the default."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ddpsim.common.strict import parse_whole_number
from ddpsim.topology.bounds import MOST_GPUS, MOST_SOCKETS
from ddpsim.topology.node import GPU_LINKS

_PLACED = ("switches", "slots")
_STATED = ("rings", "trees", "ring_bandwidth", "tree_bandwidth")


def change_node(machine: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
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
    for key in GPU_LINKS:
        if isinstance(joined := node.get(key), dict) and joined.get("pairs") and key not in changes:
            pairs = [pair for pair in joined["pairs"] if max(pair[:2]) < gpus]
            node[key] = {**joined, "pairs": pairs} if pairs else None
    placed = not isinstance(node.get("pcie"), dict) or (isinstance(pcie, dict) and any(key in pcie for key in _PLACED))
    if isinstance(own, dict) and not placed:
        node["pcie"] = _place_devices(node["pcie"], gpus, nics, _sockets(node))
    return node


def _counts(node: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return the GPUs and NICs of a node; None where it does not say them, or more than there may be."""
    try:
        gpus, *nics = (int(node["gpus"]["count"]), *(int(entry.get("count", 1)) for entry in node.get("nics") or ()))
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
        return None
    return (gpus, sum(nics)) if max(gpus, *nics, 0) <= MOST_GPUS else None


def _sockets(node: Mapping[str, Any]) -> int:
    cpu = node.get("cpu")
    sockets = cpu.get("sockets", 1) if isinstance(cpu, dict) else 1
    return sockets if isinstance(sockets, int) and 0 < sockets <= MOST_SOCKETS else 1


def _place_devices(pcie: Mapping[str, Any], gpus: int, nics: int, sockets: int) -> dict[str, Any]:
    """Return a PCIe tree of so many devices: those of `pcie`, and the others in slots."""
    tree = {key: [_without_absent(branch, gpus, nics) for branch in pcie.get(key, ())] for key in _PLACED}
    placed = [_numbers(branch) for key in _PLACED for branch in tree[key]]
    taken = {kind: {number for each in placed for number in each[kind]} for kind in ("gpus", "nics")}
    for socket in range(sockets):
        left = {
            kind: [number for number in range(most) if number not in taken[kind] and number * sockets // most == socket]
            for kind, most in (("gpus", gpus), ("nics", nics))
        }
        if any(left.values()):
            tree["slots"].append({"socket": socket, **left})
    devices = pcie.get("devices", {})
    if isinstance(devices, dict):
        devices = {name: width for name, width in devices.items() if not _is_beyond(str(name), gpus=gpus, nics=nics)}
    return {**pcie, **tree, "devices": devices}


def _is_beyond(name: str, *, gpus: int, nics: int) -> bool:
    """Whether `gpu7`, or `nic7`, is more than there are; what is no device's name is not."""
    most, number = {"gpu": gpus, "nic": nics}.get(name[:3]), parse_whole_number(name[3:])
    return most is not None and number is not None and number >= most


def _without_absent(branch: Mapping[str, Any], gpus: int, nics: int) -> dict[str, Any]:
    """Return a branch of the tree without the devices that are not there."""
    ports = [[nic for nic in (entry if isinstance(entry, list) else [entry]) if nic < nics] for entry in _nics(branch)]
    return {
        **branch,
        "gpus": [gpu for gpu in branch.get("gpus", ()) if gpu < gpus],
        "nics": [each for each in ports if each],
        "switches": [_without_absent(inner, gpus, nics) for inner in branch.get("switches", ())],
    }


def _nics(branch: Mapping[str, Any]) -> list[Any]:
    nics = branch.get("nics", [])
    return nics if isinstance(nics, list) else [nics]


def _numbers(branch: Mapping[str, Any]) -> dict[str, set[int]]:
    inner = [_numbers(each) for each in branch["switches"]]
    own = {"gpus": set(branch["gpus"]), "nics": {nic for entry in branch["nics"] for nic in entry}}
    return {kind: own[kind].union(*(each[kind] for each in inner)) for kind in own}
