"""How far coarse bands, of fewer runs, are from whole ones: `python -m studies.bands.coarse_bands`.

It prints the largest distance of an end, as a share of the step, on workloads and machines that are bound by their
device, their host and their network; `NEGLIGIBLE` in ddpsim/prediction/predict.py bounds what one doubt may add.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from unittest.mock import patch

from ddpsim.prediction.predict import predict
from ddpsim.topology.spec import load_topology
from ddpsim.workload.files import load_workload

CASES = tuple(
    (workload, machine, nodes)
    for workload in ("resnet50", "bert-base@a100-amp-b32", "gpt2-small@h100-bf16-b8", "resnet50@b200-amp-b32", "vgg16")
    for machine in ("dgx-1v", "p3.16xlarge", "dgx-h100")
    for nodes in (1, 4)
)


def distances(cases: tuple[tuple[str, str, int], ...] = CASES) -> Iterator[tuple[str, str, int, float]]:
    """Yield workload, machine, nodes and how far an end of the coarse band is from the whole one's."""
    for workload, machine, nodes in cases:
        run = partial(predict, load_workload(workload), load_topology(machine), nodes=nodes, brief=True)
        coarse = run(coarse=True)
        with patch("ddpsim.prediction.predict.SLIGHT", 0.0):
            whole = run()
        most = max(abs(coarse.low_s - whole.low_s), abs(coarse.high_s - whole.high_s))
        yield workload, machine, nodes, most / whole.iteration_s


if __name__ == "__main__":
    for workload, machine, nodes, distance in distances():
        print(f"{workload:26} {machine:12} {nodes}  {distance:.5f}")
