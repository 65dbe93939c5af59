"""The commands whose documents and texts are recorded."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

from ddpsim.common.files import json_text
from tests.unchanged.values import FOLDER

ROOT = Path(__file__).resolve().parents[2]

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
CALIBRATION, PLAN, BESIDE = f"{FOLDER}/calibration.json", f"{FOLDER}/plan.json", f"{FOLDER}/beside.yaml"
"""Files that commands are given: what TABLE gives on MACHINE, a plan of buckets, another job."""

RUNS = "traces/paper/runs", "traces/table1/runs", "traces/round-robin/runs"
TRACES = "tests/ddpsim/explaining/cpu-ddp", "tests/ddpsim/explaining/cpu-naive", "tests/data/traces"
GPT2, BERT = "gpt2-small@a100-amp-b8", "bert-base@a100-amp-b32"

OTHERS = (
    f"predict --workload {BERT} --topology dgx-a100 --nodes 2 --tensor-parallel 2",
    f"predict --workload {GPT2} --topology dgx-a100 --nodes 2 --tensor-parallel 4 --scheme zero1",
    f"predict --workload {GPT2} --topology dgx-a100 --nodes 4 --pipeline 1f1b:4,micro-batches=8",
    f"predict --workload {GPT2} --topology dgx-a100 --nodes 2 --pipeline gpipe:2,micro-batches=4",
    f"predict --workload {GPT2} --topology dgx-a100 --nodes 2 --pipeline "
    "interleaved:2,stages-per-rank=2,micro-batches=4",
    f"predict --workload {GPT2} --topology dgx-a100 --nodes 2 --pipeline 1f1b:2 --tensor-parallel 2",
    f"predict --workload {BERT} --topology dgx-a100 --nodes 2 --beside {BESIDE}",
    f"predict --workload {BERT} --topology dgx-a100 --nodes 2 --plan {PLAN}",
    f"predict --workload {BERT} --topology dgx-a100 --nodes 2 --first 4",
    "predict --workload resnet50 --topology loopback --first 3",
    "predict --workload resnet50 --topology dgx-1v --drop layer1.1.conv1:0.3 --drop fc:0.2 --drop-buckets remapped",
    "predict --workload resnet50 --topology dgx-1v --drop layer1.1.conv1:0.3 --drop-buckets aligned",
    "predict --workload resnet50 --topology dgx-1v --nodes 2 --straggling lognormal:0.05 --seed 4",
    "predict --workload resnet50 --topology dgx-1v --unused 1:fc --find-unused-parameters",
    "predict --workload resnet50 --topology dgx-1v --nodes 2 --backend mpi",
    "predict --workload resnet50 --topology dgx-1v --nodes 2 --compiled",
    "predict --workload resnet50@v100-fp32-b32 --topology dgx-a100 --keep-pace",
    "predict --workload resnet50@a100-amp-b32 --topology dgx-a100 --optimizer adamw-fused --clip-gradients",
    "predict --workload resnet50@a100-amp-b32 --topology dgx-a100 --scale forward=1.1 --scale backward=0.9",
    "predict --workload resnet50@a100-amp-b32 --topology dgx-a100 --jitter 3% --iterations 6",
    f"predict --workload {BERT} --topology dgx-a100 --scheme fsdp2:offload,noreshard --nodes 2",
    f"predict --workload {BERT} --topology dgx-a100 --scheme fsdp2:offload --nodes 2",
    *(f"predict --workload resnet50 --topology {each}" for each in (
        "mi300x-8", "mi250x-4", "mi355x-8", "gb200-nvl72", "gb300-nvl72", "8xrtx4090", "8xl40s-pcie", "4xrtx4090",
        "g4dn.12xlarge", "g5.48xlarge", "g6.48xlarge", "8xrtxpro6000", "ncv4-4", "hgx-h200", "dgx-b300", "2x4a100-1nic",
    )),
    "predict --workload bert-large --topology gb200-nvl72 --nodes 4 --scheme hsdp:16",
    f"sweep --workload {BERT} --topology dgx-a100 --nodes 1,2 --bucket-cap-mb 5,25 --scheme zero1",
    f"plan --workload {GPT2} --topology dgx-a100 --nodes 2 --accumulate 4",
    f"plan --workload {GPT2} --topology g5.48xlarge --nodes 1,2 --bucket-cap-mb 5,25,100",
    f"plan --workload resnet50 --workload {BERT} --topology dgx-1v --topology dgx-a100 --nodes 1,2",
    f"plan --workload {GPT2} --topology dgx-a100 --nodes 2 --search --global-batch-size 256",
    f"plan --workload {GPT2} --topology dgx-a100 --search --pipeline 1f1b:2 --tensor-parallel 1,2 --memory-limit 40GB",
    f"plan --workload {GPT2} --topology dgx-a100 --nodes 2 --calibration {CALIBRATION}",
    "compare --workload resnet50 --topology dgx-1v --topology dgx-a100 --nodes 1,2 --price dgx-1v=20USD/h",
    "compare --workload resnet50 --topology dgx-1v --topology dgx-h100 --nodes 1,2 --price dgx-1v=20USD/h --price "
    "dgx-h100=90USD/h --samples-per-epoch 1281167 --epochs 90 --deadline 20h",
    "compare --workload resnet50 --topology dgx-a100 --nodes 2 --link-rate 25,100,400Gb/s",
    "compare --workload resnet50 --topology dgx-a100 --nodes 1,2 --samples-per-second 5000",
    f"compare --workload {GPT2} --topology ndv4 --nodes 4 --advice",
    "compare --workload resnet50 --topology p3.16xlarge --nodes 2 --advice",
    f"compare --workload {GPT2} --topology dgx-a100 --nodes 2 --batch-size 8,16 --precision amp,tf32",
    f"compare --workload {GPT2} --topology dgx-a100 --topology dgx-h100 --nodes 2 --keep-pace",
    "compression --workload resnet50 --topology p3.16xlarge --nodes 4 --schemes fp16,powersgd:4",
    "compression --workload bert-base --topology ndv2 --nodes 2",
    *(f"collective --op {op} --topology {machine} -b 1K -e 1G -f 32 --nodes {nodes}" for op in (
        "allreduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "sendrecv", "alltoall",
    ) for machine, nodes in (("dgx-a100", 2), ("dgx-h100", 1), ("8xl40s-pcie", 1))),
    *(f"allreduce --topology dgx-a100 --nodes 2 -b 1K -e 1G -f 8 {more}" for more in (
        "--fidelity closed", "--fidelity steps", "--backend gloo", "--algorithm ring", "--backend mpi",
        f"--calibration {CALIBRATION}",
    )),
    f"allreduce --topology dgx-a100 --nodes 2 --measured {TABLE}",
    *(f"allreduce --topology {machine} -b 1K -e 1G -f 16" for machine in (
        "mi300x-8", "mi250x-4", "gb200-nvl72", "8xrtx4090", "g4dn.metal", "dgx-b300", "lab-trunk",
    )),
    *(f"explain {folder}" for folder in TRACES),
    f"explain {TRACES[0]} --against {TRACES[1]}",
    f"explain {TRACES[0]} --topology loopback", f"explain {TRACES[1]} --untraced-step 20ms",
    f"workload import {TRACES[0]}/rank0.pt.trace.json.gz -o {FOLDER}/imported.json",
    "workload import tests/data/traces/hta_resnet50_ddp_a100_rank0of2.json.gz --shapes resnet50 "
    f"-o {FOLDER}/imported.json",
    f"workload import {FOLDER}/chakra/mlp@v100-fp32-b64.0.et -o {FOLDER}/imported.json",
    "workload list", "topo list",
    *(f"workload show {name}" for name in ("resnet50", "bert-large@h100-bf16-b8", "mlp")),
    *(f"topo show {machine}" for machine in (
        "dgx-1v", "dgx-a100", "p3.16xlarge", "8xrtx4090", "mi300x-8", "gb200-nvl72", "loopback", "lab-trunk",
    )),
    "topo show dgx-1v --channels", "topo show dgx-a100 --channels --nodes 2",
    "topo show dgx-1v --gpus 0,3,2 --channels",
    *(f"topo import tests/data/topo/{file} --gpu v100 -o {FOLDER}/imported.yaml" for file in (
        "ndv2-topo.xml", "hcm_8xV100_pytorch_readme.txt", "topo_8p_pcie.xml",
    )),
    *(f"topo import tests/data/topo/{file} --gpu a100 -o {FOLDER}/imported.yaml" for file in (
        "ndv4-topo.xml", "p4d-24xl-topo.xml",
    )),
    f"topo import tests/data/topo/H100-topology.xml -o {FOLDER}/imported.yaml",
    "constants", f"constants --calibration {CALIBRATION}", "constants --backend gloo", "constants --backend mpi",
    *(f"calibrate tests/data/tables/{table} --topology {machine} --nodes {nodes} -o {FOLDER}/other-calibration.json"
      for table, machine, nodes in (
        ("together_1node_8xH100_nvls.csv", "dgx-h100", 1), ("abci_V_v100_16gpu.csv", "abci-v", 4),
        ("deepops_2xDGX1V_roce.csv", "dgx-1v", 2), ("v100_AR_GPU8.csv", "dgx-1v", 1),
    )),
    "order-bench --steps 10 --topology dgx-a100",
    "order-bench --generated ranks=8,unused=0.3 --steps 10 --topology dgx-1v",
    "pipeline --workload bert-base --topology dgx-a100 --stages 4 --micro-batches 8",
    "pipeline --workload gpt2-small --topology dgx-1v --stages 2 --order pipedream --micro-batches 4",
    "pipeline --workload bert-base --topology p3.16xlarge --nodes 2 --stages 4 --stages-per-rank 2 --order interleaved",
    "buckets --workload resnet50 --bucket-cap-mb 1", "buckets --workload resnet50 --assignment initial",
    "buckets --workload bert-base --bucket-cap-mb-list 1,10,50", "buckets --workload resnet50 --find-unused-parameters",
    "buckets --workload resnet50 --drop fc:0.5 --drop-buckets aligned",
    f"workload split bert-base --devices 2 -o {FOLDER}/split.json",
    f"workload anchor bert-base --topology dgx-1v --step 300ms -o {FOLDER}/anchored.json",
)  # fmt: skip
"""Of every other command, and what of `predict` the lists above have not."""

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
    yield from OTHERS


def prepare() -> None:
    """Make the files that commands are given."""
    from tests.unchanged.command import answer

    FOLDER.mkdir(parents=True, exist_ok=True)
    calibrate = f"calibrate {TABLE} --topology {MACHINE} --nodes {NODES} -o {CALIBRATION}"
    plan = f"buckets --workload {BERT} --bucket-cap-mb 10 -o {PLAN}"
    chakra = f"predict --workload mlp@v100-fp32-b64 --topology 4xv100-pcie --chakra {FOLDER}/chakra"
    for line in (calibrate, plan, chakra):
        made = answer(line.split())
        if made["exit"]:
            raise RuntimeError(f"{line}: {made['said']}")
    job = {"workload": "resnet50@a100-tf32-b32", "nodes": 2}
    Path(BESIDE).write_text(json_text(job))
