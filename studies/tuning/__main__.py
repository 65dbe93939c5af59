"""`python -m studies.tuning`: the tuner's choice beside an exhaustive sweep; `run` measures what is not yet."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from ddpsim.common.files import write_whole
from studies.study import Page, Study
from studies.tuning.verdicts import page_of

HERE = Path(__file__).parent
RESULTS, CONFIGURATIONS = HERE / "tuning.json", HERE / "configurations.yaml"
COST = "cost"
"""Name under which what a decided tuner costs is measured and kept."""
LIMIT_S = 900.0
"""Within which a configuration must be measured, or is given up."""


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
    status = 0
    for name, given in [(COST, None), *((each["name"], each) for each in configurations())]:
        if name in results() or (names and name not in names):
            continue
        begun_s = time.monotonic()
        try:
            found = _cost() if given is None else _tuned(given)
        except (subprocess.SubprocessError, OSError, ValueError) as error:
            print(f"{name} is not measured: {error}", file=sys.stderr)
            status = 1
            continue
        write_whole(RESULTS, json.dumps(results() | {name: found}) + "\n")
        print(f"measured {name} in {(time.monotonic() - begun_s) / 60:.1f} minutes", file=sys.stderr)
    return status


def _tuned(given: dict[str, Any]) -> dict[str, Any]:
    """Return what the tuner left, and what its job measured, of one configuration in the lab."""
    network = ["--ranks", str(given["ranks"]), "--rate", given["rate"]]
    network += ["--delay", given["delay"]] if "delay" in given else []
    job = ["-m", "studies.tuning.job", "--workload", given["workload"], "--scale", str(given["scale"])]
    job += ["--halve", given["rate"]] if given.get("halved") else ["--seconds", str(given["seconds"])]
    with tempfile.TemporaryDirectory() as folder:
        command = ["-m", "ddpexec", "netlab", *network, "--", sys.executable, *job, "--out", folder]
        _finish(command)
        tuning, measured = (json.loads((Path(folder) / name).read_text()) for name in ("tuning.json", "measured.json"))
    return {"tuning": tuning, **measured}


def _cost() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "cost.json"
        command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "studies.tuning.cost"]
        _finish([*command, "--out", str(out)])
        found: dict[str, Any] = json.loads(out.read_text())
    return found


def _finish(command: list[str]) -> None:
    """Run a Python command to its end, or end it after `LIMIT_S`, so that it takes its network down."""
    process = subprocess.Popen([sys.executable, *command])
    try:
        code = process.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        process.terminate()
        process.wait()
        raise
    if code:
        raise subprocess.CalledProcessError(code, command)


def page() -> str:
    """Return the page."""
    return page_of(configurations(), results())


STUDY = Study("tuning", [Page("tuning.md", page)])

if __name__ == "__main__":
    sys.exit(run(sys.argv[2:]) if sys.argv[1:2] == ["run"] else STUDY.main())
