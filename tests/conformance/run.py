"""Run torch's own DDP tests against a class and hold the outcome against what torch's class does.

    python tests/conformance/run.py [--class module:Class | torch] [-k EXPRESSION] [--world 2] [--every]

Tests that torch's own class does not pass on such a machine run with `--every` alone.
Exit code 1 where a test that torch's class passes does not pass, or without -k is no longer there.
"""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

HERE = Path(__file__).parent
OURS = "ddpexec.ddp.wrapper:DistributedDataParallel"
GONE = "absent", "was not collected: torch has it no more, or under another name"


def main() -> int:
    """Run, print what is missing by tier, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--class", dest="under_test", default=OURS, help="module:Class, or torch; default ours")
    parser.add_argument("-k", dest="pick", help="only tests that match, as pytest's -k")
    parser.add_argument("--world", type=int, default=2, help="number of ranks")
    parser.add_argument("--every", action="store_true", help="run tests too that torch's class does not pass here")
    parser.add_argument("--timeout", type=int, default=60, help="seconds a test may take")
    arguments = parser.parse_args()
    with open(HERE / "tests.tsv") as file:
        rows = {row["test"]: row for row in csv.DictReader(file, delimiter="\t")}
    with tempfile.TemporaryDirectory() as folder:
        names = [name for name, row in rows.items() if arguments.every or row["torch"] == "passed"]
        results = run(names, arguments, Path(folder))
    return report(rows, results, whole=arguments.pick is None)


def run(names: list[str], arguments: argparse.Namespace, folder: Path) -> dict[str, tuple[str, str]]:
    """Return status and message of each test that ran, by name."""
    (folder / "x").touch()  # torch's tests look for a file and a folder here
    (folder / "barrier").mkdir()
    environment = os.environ | {
        "DDP_CLASS": arguments.under_test,
        "DDP_TESTS": " ".join(names),
        "BACKEND": "gloo",
        "WORLD_SIZE": str(arguments.world),
        "TEMP_DIR": str(folder),
        "INIT_METHOD": "env://",
        "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": str(arguments.timeout),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent.parent), os.environ.get("PYTHONPATH", "")]),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:warnings", "--tb=short"]
    command += ["-o", "timeout=0", f"--junitxml={folder}/results.xml", str(HERE / "suite.py")]
    command += ["-k", arguments.pick] if arguments.pick else []
    with open(folder / "log", "w") as log:
        subprocess.run(command, env=environment, cwd=folder, stdout=log, stderr=subprocess.STDOUT, check=False)
    if not (folder / "results.xml").exists():
        raise SystemExit((folder / "log").read_text()[-3000:])
    return {case.get("name", ""): _status(case) for case in ElementTree.parse(folder / "results.xml").iter("testcase")}


def report(rows: Mapping[str, Mapping[str, str]], results: Mapping[str, tuple[str, str]], *, whole: bool) -> int:
    """Print what torch's class passes and this one does not; return 1 where there is any.

    Args:
        rows: of `tests.tsv`, by test.
        results: status and message, by test.
        whole: every test was to run; one that did not is missing too.
    """
    passed, expected = Counter[str](), Counter[str]()
    missing = []
    for name, row in sorted(rows.items()):
        if row["torch"] != "passed" or not (whole or name in results):
            continue
        status, message = results.get(name, GONE)
        expected[row["tier"]] += 1
        passed[row["tier"]] += status == "passed"
        if status != "passed":
            missing.append((row["tier"], name, message))
    for tier in sorted(expected):
        print(f"tier {tier}: {passed[tier]} of {expected[tier]}")
    for tier, name, message in missing:
        print(f"  {tier} {name}: {message}")
    for name in sorted(results.keys() - rows.keys()):
        print(f"  not in tests.tsv: {name} ({results[name][0]})")
    if not results:
        print("no test was selected")
    return int(not results or bool(missing))


def _status(case: ElementTree.Element) -> tuple[str, str]:
    for child in case:
        if child.tag in ("failure", "error"):
            lines = (child.text or "").splitlines()
            return "failed", next((line.strip() for line in reversed(lines) if "Error" in line), "failed")[:200]
        if child.tag == "skipped":
            return "skipped", child.get("message") or ""
    return "passed", ""


if __name__ == "__main__":
    sys.exit(main())
