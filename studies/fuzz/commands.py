"""Whole commands, in this process, on mutated files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from random import Random

from ddpexec.__main__ import run as ddpexec
from ddpsim.cli.app import run as ddpsim
from ddpsim.workload.files import save_workload
from studies.fuzz import loaders, seeds
from studies.fuzz.running import LONGEST, longest
from studies.fuzz.values import TEXTS

WORDS = [text for text in TEXTS if "\0" not in text and "\ud800" not in text]
"""What a system can hand to a program."""
HERE = ("--topology", "dgx-1v", "--gpus-per-node", "2")


@dataclass(frozen=True, slots=True)
class Command:
    """A command with the file that is mutated for it.

    Attributes:
        target: a loader's, whose files it takes.
        arguments: of the command; `{file}` is the mutated file, `{folder}` the folder that it may write in.
    """

    target: str
    arguments: Sequence[str]
    program: Callable[[Sequence[str]], object] = ddpsim


COMMANDS = (
    Command("workload", ("predict", "--workload", "{file}", *HERE, "--json")),
    Command("workload.gz", ("predict", "--workload", "{file}", *HERE, "--trace", "{folder}/trace")),
    Command("workload", ("predict", "--workload", "{file}", "--topology", "loopback", "--gpus-per-node", "2")),
    Command("workload", ("workload", "show", "{file}", "--json")),
    Command("workload", ("workload", "show", "{file}")),
    Command("workload", ("buckets", "--workload", "{file}", "-o", "{folder}/plan.json")),
    Command("workload", ("plan", "--workload", "{file}", *HERE, "-o", "{folder}/plan.json")),
    Command("workload", ("sweep", "--workload", "{file}", *HERE, "--bucket-cap-mb", "0.1,1", "-o", "{folder}/s.jsonl")),
    Command("kineto", ("workload", "import", "{file}")),
    Command("kineto", ("workload", "import", "{file}", "-o", "{folder}/out.json.gz", "--json")),
    Command("kineto.other", ("explain", "{file}")),
    Command("explain", ("explain", "{parent}", "--json")),
    Command("chakra", ("workload", "import", "{file}")),
    Command("chakra", ("workload", "import", "{file}", "-o", "{folder}/out.json", "--json")),
    Command("tuning", ("explain", "{parent}")),
    Command("beside", ("predict", "--workload", "{folder}/tiny.json", *HERE, "--beside", "{file}", "--json")),
    Command("orders", ("order-bench", "--traces", "{file}", "--json")),
    Command("plan", ("predict", "--workload", "{folder}/tiny.json", *HERE, "--plan", "{file}")),
    Command("plan", ("buckets", "--workload", "{folder}/tiny.json", "--plan", "{file}")),
    Command("calibration", ("allreduce", "--topology", "lab-flat", "-b", "1M", "-e", "4M", "--calibration", "{file}")),
    Command(
        "calibration",
        ("predict", "--workload", "{folder}/tiny.json", "--topology", "lab-flat", "--calibration", "{file}", "--json"),
    ),
    Command("prediction", ("validate", "{file}", "{folder}/trace", "--json")),
    Command("prediction", ("validate", "{file}", "{folder}/trace")),
    Command("trace", ("validate", "{folder}/prediction.json", "{parent}")),
    Command("trace", ("validate", "{folder}/prediction.json", "{parent}", "--json")),
    Command("trace", ("order", "{parent}", "--json")),
    Command("trace", ("order", "{parent}")),
    Command("measured.json", ("allreduce", "--topology", "lab-flat", "--measured", "{file}")),
    Command("measured.text", ("allreduce", *HERE, "--measured", "{file}", "--json")),
    Command("measured.json", ("calibrate", "{file}", "--topology", "lab-flat", "-o", "{folder}/c.json")),
    Command("measured.text", ("calibrate", "{file}", "--topology", "dgx-1v", "-o", "{folder}/c.json")),
    Command("topology", ("topo", "show", "{file}", "--json")),
    Command("topology", ("topo", "show", "{file}", "--channels")),
    Command("topology", ("allreduce", "--topology", "{file}", "-b", "1M", "-e", "1M", "--json")),
    Command(
        "topology.text", ("predict", "--workload", "{folder}/tiny.json", "--topology", "{file}", "--iterations", "2")
    ),
    Command("topology.racks", ("topo", "show", "{file}", "--channels")),
    Command("topology.racks", ("allreduce", "--topology", "{file}", "--nodes", "4", "-b", "1M", "-e", "1M")),
    Command(
        "topology.racks.text",
        ("predict", "--workload", "{folder}/tiny.json", "--topology", "{file}", "--nodes", "2", "--iterations", "2"),
    ),
    Command("topology.amd", ("topo", "show", "{file}", "--channels", "--json")),
    Command("topology.amd", ("allreduce", "--topology", "{file}", "--nodes", "2", "-b", "1M", "-e", "1M", "--json")),
    Command(
        "topology.amd.text",
        ("predict", "--workload", "{folder}/tiny.json", "--topology", "{file}", "--nodes", "2", "--json"),
    ),
    Command("rocm_smi", ("topo", "import", "{file}", "--gpu", "mi210", "-o", "{folder}/o.yaml")),
    Command("measured.rccl", ("calibrate", "{file}", "--topology", "mi300x-8", "-o", "{folder}/c.json")),
    Command("nccl_xml", ("topo", "import", "{file}", "--json")),
    Command("nccl_xml", ("topo", "import", "{file}", "--gpu", "v100", "-o", "{folder}/o.yaml")),
    Command("rccl_xml", ("topo", "import", "{file}", "--json")),
    Command("nvidia_smi", ("topo", "import", "{file}", "--gpu", "v100")),
    Command("nccl_graph", ("topo", "import", "{folder}/matrix.txt", "--graph-dump", "{file}")),
    Command("campaign", ("campaign", "{file}", "--out", "{folder}/out", "--pack", "{folder}/record"), ddpexec),
    Command("campaign.text", ("campaign", "{file}", "--out", "{folder}/out", "--pack", "{folder}/record"), ddpexec),
)


def prepare(folder: Path) -> None:
    """Write under `folder` the whole files that commands take beside the mutated one."""
    save_workload(seeds.workload(), folder / "tiny.json")
    ddpsim_quiet(
        [*seeds.PREDICT, "--workload", f"{folder}/tiny.json", "--trace", f"{folder}/trace", "--json"],
        folder / "prediction.json",
    )
    (folder / "matrix.txt").write_text(seeds.MATRICES[0], encoding="utf-8")


def ddpsim_quiet(arguments: Sequence[str], out: Path) -> None:
    """Run a command of ddpsim and keep its standard output."""
    printed = StringIO()
    with redirect_stdout(printed):
        ddpsim(arguments)
    out.write_text(printed.getvalue(), encoding="utf-8")


def case(random: Random, whole: Path, own: Path) -> tuple[Callable[[], object], str]:
    """Return the action of one case, and what it runs.

    Args:
        whole: folder that `prepare` filled.
        own: empty folder of the case.
    """
    command = random.choice(COMMANDS)
    target = loaders.targets()[command.target]
    file = own / target.file
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(target.content(random))
    places = {"{file}": file, "{parent}": file.parent, "{folder}": whole}
    arguments = [_filled(argument, places) for argument in command.arguments]
    if random.random() < 0.05:
        arguments[random.randrange(1, len(arguments))] = random.choice(WORDS)
    return lambda: _run(command.program, arguments, own), " ".join(arguments)[:300]


def _filled(argument: str, places: dict[str, Path]) -> str:
    for name, path in places.items():
        argument = argument.replace(name, str(path))
    return argument


def _run(program: Callable[[Sequence[str]], object], arguments: Sequence[str], folder: Path) -> None:
    """Run a command in `folder` and check its exit code and message.

    Raises:
        AssertionError: another exit code than 0, 1 or 2, or a message that is none or too long.
    """
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err), _inside(folder):
        code = program(arguments)
    out.getvalue().encode("utf-8")
    message = err.getvalue()
    message.encode("utf-8")
    if code not in (0, 1, 2):
        raise AssertionError(f"exit code {code}")
    if code == 2 and "error: " not in message:
        raise AssertionError(f"no message but {message!r}")
    most = max(map(longest, message.split("\nerror: ")))
    if code == 2 and most > LONGEST:
        raise AssertionError(f"message of {most} characters: {message[:200]}")


@contextmanager
def _inside(folder: Path) -> Iterator[None]:
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
