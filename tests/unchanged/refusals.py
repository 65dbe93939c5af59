"""What is refused, with exit status and message: bad values of each option, and each pair of options together."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tests.unchanged.command import answer
from tests.unchanged.values import EXECUTED, FOLDER, JOB, LAYER, PREDICT, RUN, SCHEMES, SIMULATED, words

BAD = "nonsense", "-1", "0", "1e400", "3,3"
"""Values that hardly any option takes; one that does is recorded as taken."""
PATHS = ("--out", "-o", "--trace", "--chakra", "--plot", "--report", "--cache")
"""Options whose values are files to be written."""
TAKEN = "taken"

BASES = {
    "predict": PREDICT,
    "sweep": "sweep --workload mlp@v100-fp32-b64 --topology 4xv100-pcie",
    "plan": "plan --workload mlp@v100-fp32-b64 --topology 4xv100-pcie",
    "compare": "compare --workload mlp@v100-fp32-b64 --topology 4xv100-pcie",
    "compression": "compression --workload mlp@v100-fp32-b64 --topology dgx-1v",
    "allreduce": "allreduce --topology 4xv100-pcie -e 1K",
    "collective": "collective --op broadcast --topology 4xv100-pcie -e 1K",
    "calibrate": f"calibrate tests/data/tables/v100_AR_GPU8.csv --topology dgx-1v -o {FOLDER}/other.json",
    "validate": f"validate {FOLDER}/prediction.json tests/kept/first/run",
    "explain": "explain tests/ddpsim/explaining/cpu-naive",
    "constants": "constants",
    "order-bench": "order-bench --steps 2 --topology loopback",
    "buckets": "buckets --workload mlp",
    "pipeline": "pipeline --workload bert-base --topology dgx-1v --stages 2",
    "topo show": "topo show 4xv100-pcie",
    "topo import": "topo import tests/data/topo/topo_8p_pcie.xml --gpu v100",
    "workload split": f"workload split mlp --devices 2 -o {FOLDER}/split.json",
}
"""By command, a line that it takes, to which options are added."""

LINES = (
    "", "nonsense", "predict", "predict --workload nonsense --topology dgx-1v", "predict --workload resnet50",
    "predict --workload resnet50 --topology nonsense", "predict --workload dgx-1v --topology dgx-1v",
    "predict --workload resnet50 --topology resnet50", "predict --workload none.json --topology dgx-1v",
    "predict --workload resnet50 --topology none.yaml", "predict --workload README.md --topology dgx-1v",
    "predict --workload resnet50 --topology README.md", "predict --workload - --topology -",
    "predict --workload resnet50 --topology dgx-1v --nonsense", "predict --workload resnet50 --topology dgx-1v --nodes",
    "predict --workload resnet50@nonsense --topology dgx-1v", "predict --workload mlp --workload mlp --topology dgx-1v",
    "predict --workload resnet50@v100-fp64-b32 --topology dgx-1v", "predict resnet50 dgx-1v",
    "predict --workload topologies/dgx-1v.yaml --topology dgx-1v", "predict --workload gpus --topology dgx-1v",
    "predict --workload resnet50 --topology traces/workloads/resnet50.json.gz", "plan --workload resnet50",
    "predict --workload tests/kept/first/plan.json --topology dgx-1v", "buckets --workload tests/kept/first/run",
    "compare --workload resnet50 --topology dgx-1v --price dgx-1v=3", "compare --workload resnet50 --topology dgx-1v "
    "--price nonsense=3USD/h", "compare --workload resnet50 --topology dgx-1v --deadline 3h",
    "compare --workload resnet50 --topology dgx-1v --topology nonsense", "sweep --workload resnet50 --topology dgx-1v "
    "--bucket-cap-mb 1,,2", "plan --workload resnet50 --topology dgx-1v --nodes 1,1", "plan --workload resnet50 "
    "--topology dgx-1v --micro-batch-size 2", "plan --workload resnet50 --topology dgx-1v --search --schemes ddp",
    "allreduce --topology dgx-1v -b 8 -e 4", "allreduce --topology dgx-1v -f 1", "allreduce --topology dgx-1v -b 3.5",
    "allreduce --topology dgx-1v --measured README.md", "collective --op nonsense --topology dgx-1v",
    "collective --topology dgx-1v", "calibrate --topology dgx-1v", "calibrate README.md --topology dgx-1v",
    "calibrate tests/data/tables/v100_AR_GPU8.csv --topology dgx-1v --nodes 1,2",
    "validate README.md tests/kept/first/run",
    f"validate {FOLDER}/prediction.json traces", f"validate {FOLDER}/prediction.json traces/lab/runs",
    "explain README.md", "explain traces", "explain docs", "explain nonsense", "explain tests/kept/first/run/run.json",
    "order docs", "order traces/orders", "order-bench --traces docs", "topo show", "topo show nonsense", "topo",
    "topo import README.md", "topo import none.txt", "topo import tests/data/topo/topo_8p_pcie.xml --gpu nonsense",
    "topo show dgx-1v --gpus 0,0", "topo show dgx-1v --gpus 0,99", "workload", "workload show nonsense",
    "workload import README.md", "workload import none.et", "workload show README.md", "workload split mlp --devices 0",
    "workload anchor bert-base --topology dgx-1v --step 1", "pipeline --workload resnet50 --topology dgx-1v",
    "pipeline --workload bert-base --topology dgx-1v --stages 3", "paper nonsense",
)  # fmt: skip
"""Written by hand."""

EXECUTOR_LINES = (
    "", "nonsense", "run", f"run --out {FOLDER}/run", RUN, f"run --model nonsense --out {FOLDER}/run",
    f"run --model mlp --workload mlp --out {FOLDER}/run", f"run --step nonsense --out {FOLDER}/run",
    f"{RUN} --bucket-cap-mb 1,5", "capture", "capture --model nonsense", "capture --model mlp --step a:b",
    "capture --model mlp --precision nonsense", "capture --step nonsense", "capture --step nonsense:train",
    "capture --model mlp --device nonsense", "estimate", "estimate --model mlp --gpu nonsense", "estimate --model mlp",
    "estimate --model mlp --gpu H100 --peak amp=3", "estimate --model nonsense --gpu H100",
    "estimate --model mlp --gpu H100 --precision nonsense", "estimate --model mlp --gpu H100 --optimizer nonsense",
    "microbench", "microbench -b 8 -e 4", "microbench --under-load nonsense -o -", "microbench --backend nonsense",
    "netlab", "netlab --ranks 0 -- true", "netlab --topology nonsense -- true", "netlab --ranks 2 --rate 3 -- true",
    "campaign", "campaign README.md", "campaign none.yaml", "campaign traces/smoke.yaml --only nonsense",
    "demo --out README.md", "record-orders", "order-run", "order-run none.json.gz", "order-run README.md",
)  # fmt: skip


def refusals() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield what is said of bad values, and lines written by hand."""
    for line in LINES:
        yield f"ddpsim {line}", lambda line=line: answer(line.split())
    for line in EXECUTOR_LINES:
        yield f"ddpexec {line}", lambda line=line: answer(line.split(), "ddpexec")
    for command, line in BASES.items():
        for option in _options(command):
            yield f"bad values of {command} {option}", lambda line=line, option=option: _bad(line, option, "ddpsim")
    for option in {**JOB, **EXECUTED}:
        yield f"bad values of run {option}", lambda option=option: _bad(RUN, option, "ddpexec")


def pairs() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield, by option, with which others it is taken: of predictions, and of runs up to where torchrun is missed."""
    for program, base, known in (("ddpsim", PREDICT, {**JOB, **SIMULATED}), ("ddpexec", RUN, {**JOB, **EXECUTED})):
        for option, value in known.items():
            later = dict(itertools.dropwhile(lambda item, option=option: item[0] != option, known.items()))
            asked = {other: [*words(option, value), *words(other, given)] for other, given in later.items()}
            asked[option] = words(option, value)
            yield f"{program}: {option} with others", lambda p=program, b=base, a=asked: together(p, b, a)
        for scheme in SCHEMES:
            options = {k: v for k, v in known.items() if k != "--scheme"}
            asked = {other: ["--scheme", scheme, *words(other, given)] for other, given in options.items()}
            yield f"{program}: scheme {scheme} with options", lambda p=program, b=base, a=asked: together(p, b, a)
    for command in ("plan", "compare", "sweep", "allreduce", "order-bench", "buckets", "explain"):
        own = {**OWN[command]}
        asked = {f"{a} {b}": [*words(a, own[a]), *words(b, own[b])] for a, b in itertools.combinations(own, 2)}
        yield f"ddpsim: pairs of {command}", lambda c=command, a=asked: together("ddpsim", BASES[c], a)


OWN: Mapping[str, Mapping[str, str]] = {
    "plan": {
        "--search": "", "--schemes": "ddp,zero1", "--tensor-parallel": "1,2", "--pipeline": "1f1b",
        "--micro-batch-size": "8", "--global-batch-size": "256", "--memory-limit": "80GB", "--bucket-cap-mb": "1,5",
        "--bucket-cap-mb-list": "1,5", "--scheme": "zero1", "--workers": "1",
    },
    "compare": {
        "--batch-size": "8", "--precision": "fp32", "--link-rate": "10Gb/s", "--bucket-cap-mb": "1,5",
        "--schemes": "ddp,zero1", "--price": "4xv100-pcie=3USD/h", "--samples-per-epoch": "1000", "--deadline": "1h",
        "--samples-per-second": "10", "--efficiency": "50%", "--scheme": "zero1", "--keep-pace": "",
    },
    "sweep": {
        "--bucket-cap-mb": "1,5", "--bucket-cap-mb-list": "1,5", "--nodes": "1", "--scheme": "zero1", "--workers": "1",
    },
    "allreduce": {
        "--nodes": "1", "--gpus-per-node": "2", "--backend": "gloo", "--algorithm": "ring", "--fidelity": "closed",
    },
    "order-bench": {
        "--generated": "ranks=4", "--predictor": "mean", "--policy": "never", "--consensus": "mean",
        "--wire-over-backward": "1", "--buckets": "3", "--find-unused-parameters": "", "--seed": "2",
    },
    "buckets": {
        "--bucket-cap-mb": "1", "--first-bucket-mb": "1", "--bucket-cap-mb-list": "1,5", "--assignment": "initial",
        "--find-unused-parameters": "", "--drop": f"{LAYER}:0.5", "--drop-buckets": "aligned",
        "--plan": f"{FOLDER}/plan.json",
    },
    "explain": {
        "--against": "tests/ddpsim/explaining/cpu-ddp", "--shapes": "mlp", "--topology": "dgx-1v",
        "--untraced-step": "100ms",
    },
}  # fmt: skip
"""Options that a command has for itself."""


def together(program: str, base: str, asked: Mapping[str, list[str]]) -> dict[str, str]:
    """Return for each set of words added to `base` whether it is taken, or the message."""
    found = {}
    for name, more in asked.items():
        made = answer([*base.split(), *more], program)
        found[name] = str(made["said"]) if made["exit"] else TAKEN
    return found


def _bad(line: str, option: str, program: str) -> dict[str, str]:
    """Return what is said of each bad value of an option."""
    return together(program, line, {value: [option, value] for value in BAD})


def _options(command: str) -> list[str]:
    """Return the options of a command that take a value, but those of files it writes and of other processes."""
    from ddpsim.cli.app import whole_command

    found = whole_command()
    for word in command.split():
        found = found.commands[word]
    left_out = (*PATHS, "--workers", "--scheduler", "-v", "--topo", "--flight-recorder")
    given = [each for each in found.params if each.opts[0].startswith("-") and not getattr(each, "is_flag", False)]
    return [each.opts[-1] for each in given if each.opts[-1] not in left_out and not set(each.opts) & set(PATHS)]
