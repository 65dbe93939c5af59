"""What a tuner that has decided costs a step: one training's steps by turns with and without it, ABBA.

Started by torchrun over the loopback of one machine; rank 0 writes `OUT`.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch

import ddpexec
from ddpexec.groups.launched import join_launched
from ddpexec.running.timed import make_timed_model
from ddpexec.tuning.tuner import STEPS
from ddpsim import load_workload

WORKLOAD, SCALE = "resnet50", 3.0
"""What is trained: layers are timed, so that a step is as steady as a machine lets it be."""
BLOCKS, BLOCK = 8, 20
"""Blocks of each arm, and steps of a block; the first step of each does not count."""


def main() -> None:
    """Train on this rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    with join_launched("tuning's cost") as here:
        timed = make_timed_model(load_workload(WORKLOAD), device=here.device, scale_compute=SCALE)
        ddp = torch.nn.parallel.DistributedDataParallel(timed.model.module)
        batch = timed.model.make_batch(None, here.device, torch.Generator(here.device))
        tuner = ddpexec.Tuner(ddp)

        def step(tuned: bool) -> tuple[float, float]:
            begin = time.perf_counter()
            timed.model.loss(ddp(*batch.inputs), batch).backward()
            timed.optimizer.step()
            timed.optimizer.zero_grad()
            trained = time.perf_counter()
            if tuned:
                tuner.step()
            ended = time.perf_counter()
            return ended - begin, ended - trained

        for _ in range(STEPS + 10):
            step(True)
        arms: list[list[list[float]]] = [[], []]
        calls: list[float] = []
        for number in range(2 * BLOCKS):
            tuned = number % 4 in (1, 2)
            block = [step(tuned) for _ in range(BLOCK)][1:]
            arms[tuned].append([whole for whole, _ in block])
            calls += [call for _, call in block if tuned]
        rounds = len(tuner.decisions)
        tuner.close()
        if here.communicator.rank == 0:
            found = {"without": arms[0], "with": arms[1], "calls": calls, "rounds": rounds}
            given.out.write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
