"""What the AWS post measured, and what is assumed where it does not say: machines, the host's copies, the flow's limit.

"Distributed data parallel training using Pytorch on AWS", telesens.co, 4 April 2019: ResNet-50 on tiny-imagenet at
224 x 224, PyTorch 1.01. Each unknown names what fixes it; nothing is fitted to a row that it is judged by.
"""

from __future__ import annotations

from studies.paper.aws_step import AwsStep

IMAGE_BYTES = 3 * 224 * 224 * 4
PASCAL, VOLTA, MAXWELL = "GTX1080Ti", "V100", "M60"

PASCAL_BATCH, PASCAL_STEP_S = 64, 0.328
"""Of one 1080 Ti: images, and seconds in which the post has them computed."""
ALONE_PER_S = 184.5
"""Images a second of one 1080 Ti in training.

It fixes the input stage: all that is beyond `PASCAL_STEP_S` is taken to be the copy of the batch, which makes 2.04
GB/s, as from memory that is not pinned. All other rows use that rate.
"""
COPY_Bps = PASCAL_BATCH * IMAGE_BYTES / (PASCAL_BATCH / ALONE_PER_S - PASCAL_STEP_S)

VOLTA_BATCH, VOLTA_STEP_S = 128, 0.34237
"""Of one V100, which the post does not state: a published step of that batch (sandeepkumar-skb/pytorch_experiments,
`torchvision_exp/README.md`; in `studies/estimates/steps.csv`)."""

MIXED_BATCH = 64
"""Of the machines with M60, whose batch is not stated: the largest power of two that fits 8 GiB."""

BOARD = "4x1080ti-pcie"
"""The post's own machine, whose board is not stated: a typical one; `SWITCHED` is the other kind."""
SWITCHED = """name: 4x1080ti-switched
node:
  gpus: {count: 4, model: GTX1080Ti}
  pcie:
    generation: 3
    switches:
      - {socket: 0, gpus: [0, 1]}
      - {socket: 0, gpus: [2, 3]}
  cpu: {sockets: 1, vendor: intel, model: broadwell}
"""
P3, P3_LARGE, G3 = "p3.8xlarge", "p3.16xlarge", "g3.16xlarge"
FLOW = """name: p3.8xlarge with one flow's limit
nodes: 2
node: {machine: p3.8xlarge, nics: [{count: 1, rate: 5Gb/s, kind: ethernet}]}
fabric: {kind: flat}
"""
"""Two p3.8xlarge whose ring goes over one TCP connection, as NCCL's of that time did.

EC2 limits a single flow to 5 Gb/s outside a cluster placement group (its user guide, "Amazon EC2 instance network
bandwidth"), and the post names none. In one it would have all 10 Gb/s, which is the other end.
"""
MIXED = """name: p3.8xlarge and g3.16xlarge
nodes: {p3: 1, g3: 1}
templates:
  p3: {machine: p3.8xlarge}
  g3: {machine: g3.16xlarge, workload: M60}
fabric: {kind: flat}
"""


def copied(batch: int) -> str:
    """Return the input stage of a batch: its images, in fp32, at the host's own pace."""
    return f"copy={batch * IMAGE_BYTES}B,rate={COPY_Bps!r}B/s"


def on_pascal(topology: str, **what: str) -> AwsStep:
    """Return a step on four 1080 Ti; `what` is `mode` or `backend`, `ahead` copies on a stream of its own."""
    stage = copied(PASCAL_BATCH) + (",pipelined" if what.pop("ahead", "") else "")
    return AwsStep(PASCAL, PASCAL_BATCH, PASCAL_STEP_S, topology, input_stage=stage, **what)  # type: ignore[arg-type]


def on_volta(topology: str, nodes: int | None = None, *, copies: bool = True) -> AwsStep:
    """Return a step on p3 machines, with the host's copies or with the batches there."""
    stage = copied(VOLTA_BATCH) if copies else "none"
    return AwsStep(VOLTA, VOLTA_BATCH, VOLTA_STEP_S, topology, input_stage=stage, nodes=nodes)


def of_mix(gpu: str, topology: str, *, mixed: bool = False) -> AwsStep:
    """Return a step of the mixed cluster, or of one of its machines by itself."""
    return AwsStep(gpu, MIXED_BATCH, None, topology, nodes=2 if mixed else None, other=MAXWELL if mixed else None)
