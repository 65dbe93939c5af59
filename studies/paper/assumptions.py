"""What the paper does not state, as named assumptions: a central value, a range, and what fixes it.

Nothing is fitted to a claim that it is judged by: a value comes from a source outside the paper, or from the one figure
named in `fixed_by`, and every other figure uses it as it is. What says how long that figure's step is, is `undecided`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from studies.paper.claim import Verdict


@dataclass(frozen=True, slots=True)
class Assumption:
    """An assumption is one unknown of the paper's set-up.

    Attributes:
        field: of `Settings`.
        what: it is, in words.
        low, high: ends of its range, about the 10th and 90th percentile of what it may be.
        unit: of central value and range; "" for a count.
        scale: what one unit is in SI.
        fixed_by: the figure that fixes it, or `source`.
        why: how that figure fixes it, or where the value is from.
        step: model, backend and GPUs of the step whose length in that figure fixes it; None of a source.
    """

    field: str
    what: str
    low: float
    high: float
    unit: str
    scale: float
    fixed_by: str
    why: str
    step: tuple[str, str, int] | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """One choice of all assumptions; the defaults are the central ones.

    Attributes:
        resnet_batch: images a GPU.
        bert_batch: sequences of 128 tokens a GPU.
        resnet152_batch: images of the backward in figure 2.
        channel_Bps: that one channel of an NCCL group moves between servers.
        gloo_Bps: half of what one collective of gloo moves on a hop: its thread copies and sums what it sends.
        host_Bps: TCP between the processes of a server, all together.
        congested_Bps: that the shared cluster's congested link leaves to NCCL.
        congested_tcp_Bps: that it leaves to TCP.
    """

    resnet_batch: int = 32
    bert_batch: int = 32
    resnet152_batch: int = 32
    channel_Bps: float = 1.42e9  # noqa: N815
    gloo_Bps: float = 0.54e9  # noqa: N815
    host_Bps: float = 30e9  # noqa: N815
    congested_Bps: float = 2.27e9  # noqa: N815
    congested_tcp_Bps: float = 0.89e9  # noqa: N815


CENTRAL = Settings()

ASSUMPTIONS = (
    Assumption(
        "resnet_batch",
        "ResNet-50: images a GPU and step",
        24,
        48,
        "",
        1,
        "source",
        "32 in the DDP benchmark of PyTorch's own repository, by the same group (benchmarks/distributed/ddp, 2020)",
    ),
    Assumption(
        "bert_batch",
        "BERT (large: the paper counts 15 times ResNet-50's parameters): sequences of 128 tokens a GPU and step",
        16,
        48,
        "",
        1,
        "source",
        "32 is what the documentation of the implementation in use then (transformers 1.2, 2019) names for "
        "BERT-large, and what NVIDIA runs at 128 tokens in fp32 on a V100 of 32 GB (DeepLearningExamples, 4096 "
        "accumulated over 128)",
    ),
    Assumption(
        "resnet152_batch",
        "figure 2: images of ResNet-152's backward",
        24,
        48,
        "",
        1,
        "source",
        "32 as of ResNet-50: the paper states none, and claim 2 rests on it, for backward takes as its batch",
    ),
    Assumption(
        "channel_Bps",
        "one NCCL group does not fill a link: what each of its two channels moves between servers",
        1.25,
        2.5,
        "GB/s",
        1e9,
        "fig6",
        "section 5.1 has ResNet-50 by NCCL as the case where communication takes about as long as backward, and more "
        "than half of both together: at this rate they are, without overlap on 32 GPUs",
        ("resnet50", "nccl", 32),
    ),
    Assumption(
        "gloo_Bps",
        "gloo's path through the host: the sums and copies of one collective's thread",
        0.4,
        0.75,
        "GB/s",
        1e9,
        "source",
        "two servers of February 2020 (Xeon E5-2620 v4, 40 GbE) move 1.073 GB/s with one collective in flight, "
        "whatever its size (pytorch/gloo issue 248): twice this for two ranks. Two ranks over loopback of a "
        "processor of 2023 move 1.5 GB/s, which is the upper end",
    ),
    Assumption(
        "host_Bps",
        "gloo's path through the host: TCP between the processes of a server, all together",
        15,
        60,
        "GB/s",
        1e9,
        "source",
        "twelve channels of DDR4-2666 are 256 GB/s; a byte is copied into the kernel and out of it and summed, which "
        "touches memory seven or eight times",
    ),
    Assumption(
        "congested_Bps",
        "shared cluster: what NCCL gets of the congested link of a server that only the job of 256 GPUs has",
        1.25,
        3.5,
        "GB/s",
        1e9,
        "fig10",
        "ResNet-50 by NCCL on 256 GPUs is 38 % faster where it synchronises every eighth iteration",
        ("resnet50", "nccl", 256),
    ),
    Assumption(
        "congested_tcp_Bps",
        "shared cluster: what TCP gets of that link, which shares it with all others' TCP; RDMA has a class of its own",
        0.5,
        1.5,
        "GB/s",
        1e9,
        "fig10",
        "ResNet-50 by gloo on 256 GPUs is 57 % faster where it synchronises every eighth iteration",
        ("resnet50", "gloo", 256),
    ),
)
"""Every unknown; `ddpsim paper --json` lists them with their central values."""


def documents() -> list[dict[str, object]]:
    """Return every assumption as JSON values, with its central value in its unit."""
    return [
        {
            "name": each.field,
            "what": each.what,
            "value": getattr(CENTRAL, each.field) / each.scale,
            "low": each.low,
            "high": each.high,
            "unit": each.unit,
            "fixed_by": each.fixed_by,
            "why": each.why,
        }
        for each in ASSUMPTIONS
    ]


def decided(verdict: Verdict, model: str, backend: str, gpus: int) -> Verdict:
    """Return `verdict` of how long a step is, or `undecided` where that step fixed an assumption it rests on."""
    return "undecided" if (model, backend, gpus) in {each.step for each in ASSUMPTIONS} else verdict


def ends(names: Sequence[str]) -> Iterator[tuple[Settings, Settings]]:
    """Yield the settings at the low and the high end of each of these assumptions, all others central."""
    for each in ASSUMPTIONS:
        if each.field in names:
            yield at(each, each.low), at(each, each.high)


def at(assumption: Assumption, value: float) -> Settings:
    """Return the central settings with another value, in its unit, of one assumption."""
    si = value * assumption.scale
    changed = {assumption.field: round(si) if assumption.unit == "" else si}
    return replace(CENTRAL, **changed)  # type: ignore[arg-type]
