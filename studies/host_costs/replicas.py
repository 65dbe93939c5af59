"""Processor time in which torch's DataParallel copies a module for replicas: `python -m studies.host_costs.replicas`.

The GPUs' part of it, the broadcast of parameters, is left out: tensors stand in for their copies.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Sequence
from statistics import median
from unittest.mock import patch

import torch
from torch import Tensor

from ddpexec.capturing.models import build
from studies.command import parser

MODELS = ("resnet50", "bert-base")
REPLICAS = 4
TIMES = 9
_replicate = importlib.import_module("torch.nn.parallel.replicate")
"""The module, which the package hides behind its function."""


def per_parameter_s(name: str) -> float:
    """Return the median time of copying a model for `REPLICAS` replicas, by parameter and replica."""
    module = build(name, torch.device("cpu")).module
    count = len(list(module.parameters()))

    def copies(tensors: Sequence[Tensor], devices: Sequence[object], detach: bool = False) -> list[Sequence[Tensor]]:
        return [tensors for _ in devices]

    times = []
    with patch.object(_replicate, "_broadcast_coalesced_reshape", copies):
        for _ in range(TIMES):
            begin = time.process_time()
            _replicate.replicate(module, [torch.device("cuda", index) for index in range(REPLICAS)])
            times.append(time.process_time() - begin)
    return median(times) / (count * REPLICAS)


if __name__ == "__main__":
    parser(__doc__).parse_args()
    for name in MODELS:
        print(f"{name}: {per_parameter_s(name) * 1e6:.1f} us a parameter and replica")
