"""Time of ten machines, four node counts and three batches compared, with bands: `-m studies.benchmarks.compare`.

Takes the model as its argument; 30 s are the bound on two processors that do nothing else.
"""

from __future__ import annotations

import sys
import time

from ddpsim.common.workers.requests import Workers
from ddpsim.planning.compare import compare

MACHINES = (
    "dgx-1v", "dgx-2", "dgx-a100", "dgx-h100", "dgx-b200", "hgx-h200", "p4d.24xlarge", "p5.48xlarge", "ndv4", "abci-a",
)  # fmt: skip


def main(model: str) -> None:
    """Compare and print rows and seconds."""
    start = time.perf_counter()
    with Workers().crew(len(MACHINES) * 12) as executor:
        found = compare([model], MACHINES, nodes=(1, 2, 4, 8), batch_sizes=(8, 16, 32), executor=executor)
    print(f"{model}: {len(found.rows)} rows with bands in {time.perf_counter() - start:.1f} s")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "resnet50")
