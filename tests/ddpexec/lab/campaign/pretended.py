"""A pretended lab: microbenchmarks from a formula, runs from the simulator itself."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from ddpexec.lab.campaign import campaign as campaign_module
from ddpexec.lab.campaign.campaign import carry_out
from ddpexec.lab.campaign.results import Result
from ddpexec.lab.campaign.spec import Campaign, Configuration
from ddpsim.common.errors import InputError
from ddpsim.simulation.engine import simulate
from ddpsim.topology.spec import load_topology
from ddpsim.trace.json import write_trace
from ddpsim.trace.records import Trace
from ddpsim.workload.files import load_workload, save_workload

FILE = """
name: pretended
iterations: 3
repeats: 2
networks:
  flat: {ranks: 2, rate: 1gbit}
runs:
  - {network: flat, workload: mlp, wire_over_backward: 2, vary: {bucket_cap_mb: [null, 5]}}
"""


class PretendedLab:
    """Leaves what the commands would; remembers their names and what was there when they ran."""

    def __init__(self, campaign: Campaign, folder: Path) -> None:
        self.configurations = {each.name: each for each in campaign.configurations}
        self.folder, self.commands, self.lines, self.failing = folder, list[str](), list[str](), ""
        self.stretch: dict[str, float] = {}
        self.local_s: dict[str, float] = {}
        self.busy: dict[str, float] = {}

    def __call__(self, topology: Path, command: Sequence[str]) -> None:
        self.commands.append(command[0])
        self.lines.append(" ".join(command))
        if command[0] == "microbench":
            rows = [{"size": size, "out_of_place": {"time": 500 + size / 120}} for size in (4096, 1 << 20, 1 << 26)]
            document = {"config": {"ranks": 2, "nodes": 2, "backend": "gloo"}, "results": rows}
            Path(command[-1]).write_text(json.dumps(document))
            return
        out = Path(command[-1])
        if command[0] == "capture":
            save_workload(load_workload(command[command.index("--model") + 1]), out)
            return
        assert (out.parent / "prediction.json").exists(), "run before it was predicted"
        configuration = self.configurations[out.parent.name]
        if configuration.caps == self.failing:
            raise InputError("a rank died")
        trace = self._measured(configuration, out.parent, topology, self.stretch.get(out.name, 1.0))
        timed = {"local_s": self.local_s[out.name]} if out.name in self.local_s else {}
        if out.name in self.busy:
            timed |= {"other_work_processors": self.busy[out.name], "processors": 2}
        write_trace(replace(trace, provenance={**trace.provenance, **timed}), out)

    @staticmethod
    def _measured(configuration: Configuration, folder: Path, topology: Path, stretch: float) -> Trace:
        calibration = campaign_module.load_calibration(str(topology.parent / "calibration.json"))
        workload = load_workload(folder / "workload.json.gz")
        trace = simulate(
            workload, load_topology(str(topology)).place(), campaign_module.options(configuration), calibration
        )
        return replace(trace, iterations=[stretched(each, stretch) for each in trace.iterations])


def stretched(value: Any, factor: float) -> Any:
    """Return `value` with every time in it, a field named `..._s`, times `factor`."""
    if isinstance(value, tuple):
        return tuple(stretched(each, factor) for each in value)
    if not is_dataclass(value):
        return value
    changed = {
        each.name: old * factor if each.name.endswith("_s") and isinstance(old, float) else stretched(old, factor)
        for each in fields(value)
        for old in [getattr(value, each.name)]
    }
    return replace(value, **changed)  # type: ignore[type-var]


def go(campaign: Campaign, folder: Path, *only: str) -> tuple[list[Result], list[str]]:
    return carry_out(campaign, folder, lambda line: None, only)
