"""Write `studies/paper/lab.json` from the runs kept in `traces/paper`: `python -m studies.paper.lab_runs`."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np

from ddpsim.common.files import write_whole
from studies.command import parser
from studies.paper.lab import FILE
from studies.validation.evidence import Recorded, load

RECORD = Path(__file__).resolve().parents[2] / "traces" / "paper"


def row(each: Recorded) -> dict[str, object]:
    """Return a run as `studies.paper.lab.Run` takes it."""
    run, asked, result = each.configuration.run, each.configuration.settings(), each.before.result
    low_s, high_s = spread(each.configuration.name)
    return {
        "network": run.network,
        "ranks": result.world_size,
        "wire": run.wire_over_backward,
        "impl": asked.implementation,
        "cap_mb": asked.caps.bucket_cap_mb,
        "overlap": asked.overlap == "on",
        "groups": asked.process_groups,
        "sync_every": asked.accumulate,
        "measured_s": round(result.step_s, 6),
        "predicted_s": round(result.predicted_s, 6),
        "low_s": round(low_s, 6),
        "high_s": round(high_s, 6),
    }


def spread(name: str) -> tuple[float, float]:
    """Return the 10th and 90th percentile of rank 0's counted iterations."""
    import gzip

    record = json.loads(gzip.decompress((RECORD / "runs" / f"{name}.json.gz").read_bytes()))
    times = [i["end_s"] - i["start_s"] for run in record["runs"] for i in run["iterations"] if i["rank"] == 0]
    low, high = np.percentile(times, [10, 90])
    return float(low), float(high)


def main() -> None:
    """Write the file."""
    with tempfile.TemporaryDirectory() as folder:
        evidence = load(RECORD, Path(folder))
    rows = [row(each) for each in evidence.recorded]
    lines = ",\n".join(f"  {json.dumps(each)}" for each in rows)
    write_whole(FILE, f'{{"runs": [\n{lines}\n]}}\n'.encode())


if __name__ == "__main__":
    parser(__doc__).parse_args()
    main()
