"""Whole-process time of FSDP2 with many units on 1,024 ranks: `python -m studies.benchmarks.sharded`; 1 s is the bound.

The workload is a transformer of one shape in layers, estimated for an H100: a unit a layer, four parameters each.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from ddpsim.bucketing import Parameter
from ddpsim.workload import Workload
from ddpsim.workload.files import save_workload
from ddpsim.workload.profile import ForwardUse
from studies.benchmarks.speed import measure
from studies.command import parser
from studies.published.step_workloads import transformer

UNITS, BOUND_S = 100, 1.0
_LAYER = ([6144, 2048], [2048, 2048], [8192, 2048], [2048, 8192])


def layered(units: int) -> Workload:
    """Return a transformer of so many layers, 2.5 ms of an H100 each, which knows when forward needs what."""
    found = transformer(
        one_s=units * 2.5e-3,
        dtype="float32",
        gpu="H100",
        layers=units,
        layer=_LAYER,
        before=[],
        after=[],
        optimizer="5ms",
    )
    names = [f"layers.{index // len(_LAYER)}.{index % len(_LAYER)}.weight" for index in range(len(found.parameters))]
    parameters = tuple(Parameter(n, p.shape, p.dtype, p.device) for n, p in zip(names, found.parameters, strict=True))
    shares = np.arange(len(names)) / len(names)
    use = ForwardUse(shares * float(found.forward.host_s[0]), shares * float(found.forward.device_s[0]))
    return replace(found, name=f"transformer-{units}", parameters=parameters, forward_use_s=use)


def main() -> None:
    """Print the time of each scheme beside the bound of FSDP2's."""
    missed = False
    with tempfile.TemporaryDirectory() as folder:
        for units in (UNITS // 4, UNITS // 2, UNITS):
            path = Path(folder) / f"{units}.json.gz"
            save_workload(layered(units), path)
            for scheme in ("ddp", "fsdp2", "hsdp:8"):
                asked = (
                    "predict",
                    "--workload",
                    str(path),
                    "--topology",
                    "dgx-h100",
                    "--nodes",
                    "128",
                    "--scheme",
                    scheme,
                )
                seconds, _ = measure(asked)
                missed |= scheme == "fsdp2" and units == UNITS and seconds > BOUND_S
                print(f"{units:4} units, 1,024 ranks, {scheme:8} {seconds:6.2f} s", flush=True)
    sys.exit("bound missed" if missed else 0)


if __name__ == "__main__":
    parser(__doc__).parse_args()
    main()
