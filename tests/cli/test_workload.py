from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest


def test_list_and_show(ddpsim: Callable, tiny: Path) -> None:
    listed = ddpsim("workload", "list", "--json").document["workloads"]
    assert all(row["local_s"] > 0 for row in listed)
    shown = ddpsim("workload", "show", tiny, "--json").document
    assert shown["local_s"] == pytest.approx(0.013)
    assert shown["phases"]["backward"] == {"host_s": 0.002, "device_s": 0.008}
    text = ddpsim("workload", "show", tiny).out
    assert "device: V100" in text
    assert "made by hand" in text


def test_bad_workloads_are_named_with_the_place(ddpsim: Callable, tiny: Path) -> None:
    ddpsim("workload", "show", "tinny").refused("'tinny'")
    document = json.loads(tiny.read_text())
    document["forward"]["device_s"][0] = -1
    tiny.write_text(json.dumps(document))
    ddpsim("workload", "show", tiny).refused("tiny.json", "forward.device_s.0", "-1")
    tiny.write_text(tiny.read_text()[:40])
    ddpsim("workload", "show", tiny).refused("tiny.json", "not JSON")
