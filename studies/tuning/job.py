"""One rank of a judged training: tuned first, then every cap and list measured in alternating blocks of steps.

Started by `python -m ddpexec netlab`; rank 0 writes `OUT/measured.json`.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import ddpexec
from ddpexec.ddp.parameters import collect
from ddpexec.groups.launched import launched
from ddpexec.running.stock import buckets_of
from ddpexec.running.timed import timed_model
from ddpexec.tuning.blocks import SETTLING, turns
from ddpexec.tuning.rewrapping import caps_in_force, rewrap
from ddpsim import load_workload
from ddpsim.bucketing import BucketCaps, rebuilt_plan
from ddpsim.planning.best_buckets import CAPS_MB
from ddpsim.units import MIB

AFTER = 10
"""Steps of the tuned training beyond those of a round."""


def main() -> None:
    """Train on this rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workload", required=True)
    parser.add_argument("--scale", type=float, required=True)
    parser.add_argument("--block", type=int, default=4)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    with launched("tuning") as here:
        rank = here.communicator.rank
        torch.manual_seed(0)
        workload = load_workload(given.workload)
        timed = timed_model(workload, device=here.device, rank=rank, seed=0, scale_compute=given.scale)
        ddp = torch.nn.parallel.DistributedDataParallel(timed.model.module)
        batch = timed.model.make_batch(None, here.device, torch.Generator(here.device))

        def step() -> float:
            begin = time.perf_counter()
            timed.model.loss(ddp(*batch.inputs), batch).backward()
            timed.optimizer.step()
            timed.optimizer.zero_grad()
            return time.perf_counter() - begin

        tuner = ddpexec.Tuner(ddp, out=given.out)
        for _ in range(100 + AFTER):
            step()
            tuner.step()
        tuner.close()
        measured = swept(ddp, caps_in_force(ddp), step, given.block) if given.block else []
        if rank == 0:
            (given.out / "measured.json").write_text(json.dumps({"plans": measured}) + "\n")


def swept(ddp: Any, kept: BucketCaps, step: Any, block: int) -> list[dict[str, object]]:
    """Return every plan's steps, seconds, in two blocks: torch's default, then caps, ascending, and what was kept."""
    found = collect(ddp.module)
    order = [index for group in buckets_of(ddp, found) for index in group]
    total = sum(each.size_bytes for each in found.policy) / MIB
    caps = [BucketCaps(), *(BucketCaps(bucket_cap_mb=c) for c in CAPS_MB if c < total)]
    caps += [BucketCaps(bucket_cap_mb=float(np.ceil(total)))]
    if kept != BucketCaps() and kept not in caps:
        caps.append(kept)
    box = [order]
    dist.broadcast_object_list(box, 0)
    steps: list[list[list[float]]] = [[] for _ in caps]
    for number in turns(len(caps)):
        rewrap(ddp, caps[number], rebuilt_plan(found.policy, caps[number], box[0]).groups())
        for _ in range(SETTLING):
            step()
        steps[number].append([step() for _ in range(block)])
    return [{"caps": each.torch_arguments(), "blocks": taken} for each, taken in zip(caps, steps, strict=True)]


if __name__ == "__main__":
    main()
