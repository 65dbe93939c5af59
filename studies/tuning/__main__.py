"""`python -m studies.tuning`: the tuner's choice beside an exhaustive sweep; `run` measures what is not yet."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from ddpsim.files import write_whole
from studies.study import Page, Study
from studies.tuning.judge import judged

HERE = Path(__file__).parent
RESULTS, CONFIGURATIONS = HERE / "tuning.json", HERE / "configurations.yaml"


def configurations() -> list[dict[str, Any]]:
    """Return what is to be judged."""
    found: list[dict[str, Any]] = yaml.safe_load(CONFIGURATIONS.read_text())
    return found


def results() -> dict[str, Any]:
    """Return what has been measured, by configuration."""
    found: dict[str, Any] = json.loads(RESULTS.read_text())
    return found


def run(names: list[str]) -> int:
    """Measure the configurations of these names, or all, that have no result; each result is kept at once."""
    for each in configurations():
        known = results()
        if each["name"] in known or (names and each["name"] not in names):
            continue
        with tempfile.TemporaryDirectory() as folder:
            delay = ["--delay", each["delay"]] if "delay" in each else []
            network = ["--ranks", str(each["ranks"]), "--rate", each["rate"], *delay]
            job = ["-m", "studies.tuning.job", "--workload", each["workload"], "--scale", str(each["scale"])]
            command = ["-m", "ddpexec", "netlab", *network, "--", sys.executable, *job, "--out", folder]
            subprocess.run([sys.executable, *command], check=True)
            tuning = json.loads((Path(folder) / "tuning.json").read_text())
            plans = json.loads((Path(folder) / "measured.json").read_text())["plans"]
        known[each["name"]] = {"tuning": tuning, "plans": plans}
        write_whole(RESULTS, json.dumps(known) + "\n")
        print(f"measured {each['name']}", file=sys.stderr)
    return 0


def page() -> str:
    """Return the page."""
    known, every = results(), configurations()
    rows = [(each["name"], judged(**known[each["name"]])) for each in every if each["name"] in known]
    lines = [
        "# The tuner's choice beside an exhaustive sweep",
        "",
        f"{len(rows)} of {len(every)} configurations are measured. Steps in ms; *lost* is a share of those until then.",
        "",
        "| name | kept | default | best | kept ms | of best | of default | steps | lost | blind | lost |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for name, row in rows:
        cells = [name, f"`{row['kept']}`", *(f"{row[key] * 1e3:.1f}" for key in ("default_s", "best_s"))]
        kept = row["kept_s"]
        cells += ["not swept"] * 3 if kept is None else [f"{kept * 1e3:.1f}", *_ratios(row)]
        cells += [str(row["steps"]), f"{row['lost']:.1%}", f"{row['blind_over_best']:.3f}", f"{row['blind_lost']:.1%}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _ratios(row: dict[str, Any]) -> list[str]:
    return [f"{row[key]:.3f}" for key in ("over_best", "over_default")]


STUDY = Study("tuning", [Page("tuning.md", page)])

if __name__ == "__main__":
    sys.exit(run(sys.argv[2:]) if sys.argv[1:2] == ["run"] else STUDY.main())
