"""What a command imports: `python -m studies.benchmarks.imports [--json]`.

Each command runs in a process of its own. Of the libraries that cost a command time it says which were imported, and of
how many modules of the project; neither depends on how fast the machine is.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any, TypedDict

from studies.command import parser

LIBRARIES = ("numpy", "networkx", "simpy", "pydantic", "yaml", "rich", "typer", "matplotlib")
MODEL = "--workload resnet50 --topology dgx-1v"
COMMANDS = (
    "--help",
    "--version",
    "topo show dgx-1v",
    "workload show resnet50",
    "collective --op allreduce --topology dgx-1v",
    f"predict {MODEL}",
    f"predict {MODEL} --scheme fsdp2",
    f"sweep {MODEL} --nodes 1",
)

_RUN = """
import contextlib, io, json, sys
from ddpsim.cli.app import run
with contextlib.redirect_stdout(io.StringIO()):
    code = run(sys.argv[1:])
top = {name.partition(".")[0] for name in sys.modules}
ours = sum(name.partition(".")[0] == "ddpsim" for name in sys.modules)
print(json.dumps({"code": code, "top": sorted(top), "modules": ours, "all": len(sys.modules)}))
"""


class Imported(TypedDict):
    """What a command imports, as the document says it."""

    command: str
    libraries: list[str]
    modules: int
    all_modules: int


def imported(command: str) -> Imported:
    """Return what a command imports: libraries of `LIBRARIES`, and how many modules of the project and in all.

    Raises:
        RuntimeError: the command failed.
    """
    done = subprocess.run([sys.executable, "-c", _RUN, *command.split()], capture_output=True, text=True, check=False)
    found: dict[str, Any] = {"code": done.returncode}
    if done.stdout:
        found = json.loads(done.stdout.splitlines()[-1])
    if found["code"]:
        raise RuntimeError(f"ddpsim {command}: {done.stderr.strip()}")
    libraries = [name for name in LIBRARIES if name in found["top"]]
    return {"command": command, "libraries": libraries, "modules": found["modules"], "all_modules": found["all"]}


def main() -> None:
    """Print a line a command."""
    asked = parser(__doc__)
    asked.add_argument("--json", action="store_true", help="print one JSON document")
    given = asked.parse_args()
    found = [imported(command) for command in COMMANDS]
    if given.json:
        print(json.dumps(found))
        return
    for each in found:
        libraries = ", ".join(each["libraries"]) or "none"
        print(f"ddpsim {each['command']}: {each['modules']} of {each['all_modules']} modules ours; {libraries}")


if __name__ == "__main__":
    main()
