"""Random nodes and broken files."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import strategies as st

JUNK: st.SearchStrategy[object] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 100),
    st.floats(allow_nan=True),
    st.sampled_from(["", "x", "12", "5GB/s", "-1GB/s", "1e-6", "gpu0", "dgx-1v", "gpu0-gpu1", "a>b>c"]),
    st.just([]),
    st.just({}),
    st.just([1, [2, {"a": None}]]),
    st.just({"a": {1: 2}}),
)


@st.composite
def nodes(draw: st.DrawFn) -> dict[str, Any]:
    """Draw the `node` part of a file: a PCIe tree over one to three sockets, NVLinks or a switch, NICs."""
    gpus, nics, sockets = draw(st.integers(1, 6)), draw(st.integers(0, 3)), draw(st.integers(1, 3))
    places = draw(st.integers(1, 4))
    branches: list[dict[str, Any]] = [{"socket": draw(st.integers(0, sockets - 1))} for _ in range(places)]
    for key, count in (("gpus", gpus), ("nics", nics)):
        for number in range(count):
            draw(st.sampled_from(branches)).setdefault(key, []).append(number)
    inner = [branch for branch in branches if draw(st.booleans())]
    pcie = {"generation": draw(st.integers(3, 5)), "switches": inner}
    pcie["slots"] = [branch for branch in branches if branch not in inner]
    node: dict[str, Any] = {
        "gpus": {"count": gpus, "model": draw(st.sampled_from(["V100", "A100", "H100", "GTX1080Ti"]))}
    }
    reach = draw(st.sampled_from([None, "LOC", "PIX", "PHB", "SYS"]))
    if reach:
        node["gpus"]["peer_to_peer"] = reach
    pairs = [[a, b, draw(st.integers(1, 3))] for a in range(gpus) for b in range(a) if draw(st.booleans())]
    if pairs:
        node["nvlink"] = {"pairs": pairs}
    elif draw(st.booleans()):
        node["nvswitch"] = {"links_per_gpu": draw(st.integers(1, 18))}
    if nics:
        rate = draw(st.sampled_from(["1Gb/s", "25Gb/s", "100Gb/s", "400Gb/s"]))
        node["nics"] = [{"count": nics, "rate": rate, "kind": draw(st.sampled_from(["infiniband", "ethernet"]))}]
    return node | {"pcie": pcie, "cpu": {"sockets": sockets, "vendor": draw(st.sampled_from(["intel", "amd"]))}}


@st.composite
def broken(draw: st.DrawFn, document: dict[str, Any]) -> dict[str, Any]:
    """Draw `document` with one value, at any depth, replaced by junk."""
    changed = copy.deepcopy(document)
    here: Any = changed
    while True:
        key = draw(st.sampled_from(sorted(here) if isinstance(here, dict) else list(range(len(here)))))
        inner = here[key]
        if not isinstance(inner, dict | list) or not inner or draw(st.booleans()):
            here[key] = draw(JUNK)
            return changed
        here = inner
