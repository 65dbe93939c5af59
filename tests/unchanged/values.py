"""A value of each option that many jobs may be given, for what is said of two of them together and of bad ones."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path("out/unchanged")
"""Where files are made that commands are given, and written that they write."""

PREDICT = "predict --workload mlp@v100-fp32-b64 --topology 4xv100-pcie"
RUN = f"run --model mlp --out {FOLDER}/run"
LAYER = "2"

JOB = {
    "--bucket-cap-mb": "1", "--first-bucket-mb": "1", "--bucket-cap-mb-list": "1,5", "--assignment": "initial",
    "--find-unused-parameters": "", "--backend": "gloo", "--no-sync-every": "2", "--sync": "every",
    "--gradient-as-bucket-view": "", "--no-broadcast-buffers": "", "--process-groups": "2", "--straggler": "1:1.5",
    "--comm": "noop", "--compression": "fp16", "--drop": f"{LAYER}:0.5", "--drop-buckets": "aligned",
    "--order": "once", "--predictor": "mean", "--consensus": "mean", "--scheme": "zero1", "--overlap": "off",
    "--input-stage": "load=1ms", "--scale-compute": "2", "--seed": "3", "--iterations": "4",
    "--plan": f"{FOLDER}/plan.json",
}  # fmt: skip
"""What both `predict` and `run` take."""

SIMULATED = {
    "--algorithm": "ring", "--fidelity": "closed", "--scale-host": "2", "--scale": "forward=2", "--optimizer": "sgd",
    "--clip-gradients": "", "--compiled": "", "--keep-pace": "", "--jitter": "5%", "--straggling": "lognormal:0.05",
    "--unused": f"1:{LAYER}", "--tensor-parallel": "2", "--expert-parallel": "2", "--pipeline": "1f1b:2",
    "--set": "nccl.ddp.compute_slowdown=1.2", "--gpus-per-node": "2", "--nodes": "1", "--first": "3",
    "--beside": f"{FOLDER}/beside.yaml", "--calibration": f"{FOLDER}/calibration.json",
    "--trace": f"{FOLDER}/trace", "--chakra": f"{FOLDER}/chakra",
}  # fmt: skip
"""What `predict` takes beside."""

EXECUTED = {
    "--impl": "torch", "--batch-size": "2", "--timeout": "10s", "--devices": "2", "--local-iterations": "3",
    "--send-rate": "1gbit", "--no-stamps": "", "--interleave": "", "--device": "cpu", "--threads": "1",
    "--pipeline": "1f1b", "--micro-batches": "4",
}  # fmt: skip
"""What `run` takes beside."""

SCHEMES = (
    "naive", "dataparallel", "priority", "dear", "zero1", "zero3", "zero1:deepspeed", "fsdp2", "hsdp:2", "averaging:4",
    "local-sgd:4", "horovod", "parameter-server", "gradientflow",
)  # fmt: skip


def words(option: str, value: str) -> list[str]:
    """Return an option as a command line has it."""
    return [option, *value.split()]
