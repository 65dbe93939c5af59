"""One rank of a judged training: tuned first, then swept; or tuned, its network halved, and tuned anew.

Started by `python -m ddpexec netlab`; rank 0 writes `OUT/measured.json`, the tuner `OUT/tuning.json`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import ddpexec
from ddpexec.groups.launched import join_launched
from ddpexec.lab.netlab.lab import QUEUE_S, burst_bytes
from ddpexec.running.timed import make_timed_model
from ddpexec.tuning.rewrapping import caps_in_force
from ddpexec.tuning.tuner import STEPS
from ddpsim import load_workload
from ddpsim.common.units import parse_bandwidth
from studies.tuning.sweep import Sweep

BEFORE_HALVED = 10
"""Steps of the tuned training after its decision, before its network is halved."""
NOTICED_WITHIN = 300
"""Steps after that within which it is to have noticed and tuned anew."""


def main() -> None:
    """Train on this rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workload", required=True)
    parser.add_argument("--scale", type=float, required=True)
    parser.add_argument("--seconds", type=float, default=120.0, help="of the sweep, about")
    parser.add_argument("--halve", metavar="RATE", help="the network's, that is halved once it is tuned for")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    with join_launched("tuning") as here:
        torch.manual_seed(0)
        rank, workload = here.communicator.rank, load_workload(given.workload)
        timed = make_timed_model(workload, device=here.device, rank=rank, seed=0, scale_compute=given.scale)
        ddp = torch.nn.parallel.DistributedDataParallel(timed.model.module)
        batch = timed.model.make_batch(None, here.device, torch.Generator(here.device))

        def step() -> float:
            begin = time.perf_counter()
            timed.model.loss(ddp(*batch.inputs), batch).backward()
            timed.optimizer.step()
            timed.optimizer.zero_grad()
            return time.perf_counter() - begin

        tuner = ddpexec.Tuner(ddp, out=given.out)
        measured: dict[str, Any] = {"steps": tuned(tuner, step, 1, STEPS)}
        if given.halve is not None:
            for _ in range(BEFORE_HALVED):
                step()
                tuner.step()
            _shape(parse_bandwidth(given.halve) / 2)
            measured["halved_at"] = len(measured["steps"]) + BEFORE_HALVED
            measured["after"] = tuned(tuner, step, 2, NOTICED_WITHIN)
        tuner.close()
        if given.halve is None:
            measured["plans"] = Sweep(ddp, caps_in_force(ddp), step, given.seconds).plans()
        if rank == 0:
            (given.out / "measured.json").write_text(json.dumps(measured) + "\n")


def tuned(tuner: ddpexec.Tuner, step: Callable[[], float], rounds: int, most: int) -> list[float]:
    """Train until so many rounds are decided, `most` steps at most; return the seconds of each, with the tuner's."""
    seconds: list[float] = []
    while len(tuner.decisions) < rounds and len(seconds) < most:
        begin = time.perf_counter()
        step()
        tuner.step()
        seconds.append(time.perf_counter() - begin)
    return seconds


def _shape(rate: float) -> None:
    """Let this rank's link carry another rate, bytes a second; a rank of the lab is alone in its namespace."""
    words = ["rate", f"{rate * 8:.0f}bit", "burst", str(burst_bytes(rate)), "latency", f"{QUEUE_S * 1e3:.0f}ms"]
    subprocess.run(["tc", "qdisc", "change", "dev", "eth0", "root", "handle", "1:", "tbf", *words], check=True)


if __name__ == "__main__":
    main()
