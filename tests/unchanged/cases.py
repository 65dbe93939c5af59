"""The commands whose documents are recorded: predictions, sweeps, plans and allreduce tables."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle

MACHINES = (
    "2xgp100-nvlink", "4x1080ti-pcie", "4xv100-pcie", "8xgpu-dual-root", "abci-a", "abci-v", "dgx-1v", "dgx-2",
    "dgx-a100", "dgx-b200", "dgx-h100", "gh200-quad", "hgx-a100-4", "nc24", "ndv2", "ndv4", "p3.16xlarge",
    "p3dn.24xlarge", "p4d.24xlarge", "p5.48xlarge",
)  # fmt: skip
ALONE = ("2xgp100-nvlink", "4x1080ti-pcie", "4xv100-pcie", "8xgpu-dual-root", "hgx-a100-4", "nc24")
"""Machines that no network joins to others."""

MODELS = (
    "resnet50", "bert-base", "gpt2-small@a100-amp-b8", "bert-large@h100-bf16-b8", "vgg16", "vit-b16@v100-fp32-b32",
    "resnet152", "mlp@b200-amp-b64", "resnext50_32x4d@a100-tf32-b32",
)  # fmt: skip
OPTIONS = (
    "", "--bucket-cap-mb 5", "--bucket-cap-mb-list 1,10,50", "--bucket-cap-mb 25 --first-bucket-mb 2",
    "--assignment initial", "--find-unused-parameters", "--no-sync-every 4", "--gradient-as-bucket-view",
    "--no-broadcast-buffers", "--process-groups 3", "--straggler 1:1.3", "--comm noop", "--compression fp16",
    "--compression powersgd:4", "--compression topk:0.01", "--order once", "--order drift:0.9:5 --predictor mean",
    "--scale-compute 0.5", "--scale-host 2", "--algorithm ring", "--algorithm tree", "--fidelity closed",
    "--bucket-cap-mb 0", "--seed 3 --iterations 5", "--gpus-per-node 2", "--backend gloo",
)  # fmt: skip

SCHEMES = (
    "naive", "flat", "dataparallel", "priority", "priority:4MiB,credit=16MiB", "dear", "zero0", "zero1", "zero2",
    "zero1:deepspeed", "zero3", "fsdp2", "fsdp2:noreshard,gather=bf16", "hsdp:8", "horovod", "multiworker-mirrored",
    "multiworker-mirrored:pack=8MiB", "gradientflow", "parameter-server", "parameter-server:servers=2,async",
    "averaging:4", "slowmo:4", "local-sgd:4", "local-sgd:4,ranks=2",
)  # fmt: skip
BESIDE_SCHEMES = ("", "--no-sync-every 2", "--overlap off", "--backend gloo", "--input-stage load=20ms,copy=38MB")
"""Options that go with schemes, in turn."""

TABLE, MACHINE, NODES = "tests/data/tables/crusoe_2node_16xA100_ib.csv", "dgx-a100", 2
CALIBRATION = "out/unchanged.json"
"""Where the calibration is written that TABLE gives on MACHINE."""

CALIBRATED = (
    "predict --workload bert-base@a100-amp-b32 --topology dgx-a100 --nodes 2",
    "predict --workload bert-base@a100-amp-b32 --topology dgx-a100 --nodes 4",
    "plan --workload bert-large@a100-amp-b8 --topology dgx-a100 --nodes 1,2,4",
    "allreduce --topology dgx-a100 --nodes 2 -b 1K -e 1G -f 2",
    "allreduce --topology dgx-a100 --nodes 3 -b 1K -e 1G -f 2",
)


def cases() -> Iterator[str]:
    """Yield each command line, without `--json`."""
    models, options = cycle(MODELS), cycle(OPTIONS)
    for count in (1, 2, 4):
        for machine in MACHINES:
            nodes = 1 if machine in ALONE else count
            yield f"predict --workload {next(models)} --topology {machine} --nodes {nodes} {next(options)}".strip()
    for option in OPTIONS:
        yield f"predict --workload resnet50 --topology dgx-1v --nodes 2 {option}".strip()
        yield f"predict --workload bert-base@a100-amp-b32 --topology dgx-a100 --nodes 4 {option}".strip()
    beside = cycle(BESIDE_SCHEMES)
    for scheme in SCHEMES:
        nodes = 1 if scheme == "dataparallel" else 2
        yield f"predict --workload resnet50 --topology dgx-1v --nodes {nodes} --scheme {scheme} {next(beside)}".strip()
        yield f"predict --workload mlp --topology lab-flat --scheme {scheme}"
    yield "compare --workload gpt2-small@a100-amp-b8 --topology dgx-a100 --nodes 2 --schemes ddp,zero2,fsdp2,priority"
    yield "plan --workload resnet50 --topology dgx-1v --nodes 1,2 --schemes ddp,zero1,hsdp:8,dear"
    for machine in MACHINES[::3]:
        for model in MODELS[:2]:
            nodes = "1" if machine in ALONE else "1,2"
            yield f"plan --workload {model} --topology {machine} --nodes {nodes}"
    for machine in ("loopback", "lab-flat", "lab-trunk", "lab-slow-link"):
        yield f"predict --workload mlp --topology {machine}"
        yield f"sweep --workload resnet50 --topology {machine} --bucket-cap-mb 1,25,100"
    yield from (f"sweep --workload {model} --topology ndv4 --nodes 1,4 --bucket-cap-mb 1,25" for model in MODELS[:4])
    for machine in MACHINES:
        yield f"allreduce --topology {machine} --nodes 1 -b 1K -e 1G -f 8"
        if machine not in ALONE:
            yield f"allreduce --topology {machine} --nodes 4 -b 1K -e 256M -f 4"
    yield from (f"{case} --calibration {CALIBRATION}" for case in CALIBRATED)
    yield from (f"buckets --workload {model}" for model in MODELS)
