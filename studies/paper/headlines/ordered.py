"""Headlines of systems that order messages: TicTac's pulls, ByteScheduler's credit, PACE's plan."""

from __future__ import annotations

from dataclasses import replace

from studies.paper.figure import Answers
from studies.paper.headlines.headline import Headline, Said
from studies.paper.headlines.points import Job, Machine

_MODELS = ("resnet50", "vgg16", "bert-base")
_RATES = ("10Gb/s", "25Gb/s", "100Gb/s")
_OF = "ResNet-50, VGG-16 and BERT-base in batches of 32 on 16 V100 in two servers at 10, 25 and 100 Gb/s, the best of 9"
_UNSTATED = "not stated in the abstract: models, GPUs, network and framework"


def _jobs(scheme: str) -> list[Job]:
    return [
        Job(model, "V100", 32, Machine(f"two servers at {rate}", "V100", 8, rate, "roce", 1, nodes=2), scheme)
        for model in _MODELS
        for rate in _RATES
    ]


_DDP, _HOROVOD = _jobs("ddp"), _jobs("horovod")
_CREDIT, _PLANNED = _jobs("priority:4MiB,credit=16MiB"), _jobs("priority:4MiB")
_SERVED = _jobs("parameter-server:servers=8")
_TICTAC = [replace(job, scheme=f"{job.scheme},tictac") for job in _SERVED]


def _gain(better: list[Job], worse: list[Job], answers: Answers, *, worst: bool = False) -> tuple[float, Job]:
    """Return by which part more samples a second come of one scheme than of another, at the most or worst."""
    gains = [
        (answers[one]["samples_per_s"] / answers[other]["samples_per_s"] - 1, one)
        for one, other in zip(better, worse, strict=True)
    ]
    return (min if worst else max)(gains, key=lambda pair: pair[0])


def _hidden(worse: list[Job], answers: Answers) -> float:
    """Return by which part more samples come at the most where all communication of `worse` is hidden."""
    return max(float(answers[job]["iteration_s"] / answers[job]["alone_s"] - 1) for job in worse)


def _where(job: Job) -> str:
    return f"{job.model}, {job.machine.network}"


def _tictac(answers: Answers) -> Said:
    gain, job = _gain(_TICTAC, _SERVED, answers)
    least, there = _gain(_TICTAC, _SERVED, answers, worst=True)
    return Said(
        f"{gain:+.1%} at the best ({_where(job)}), {least:+.1%} at the worst ({_where(there)})",
        "undecided",
        "Pulls in forward's order wait for the push that comes last, so that a link carries one direction after the "
        "other; in the order of the pushes it carries both at once, and here that is worth more than forward's head "
        "start. The paper's baseline pulls in random order once all has been updated: there the order only gains.",
    )


def _bytescheduler(answers: Answers) -> Said:
    gain, job = _gain(_CREDIT, _DDP, answers)
    return Said(
        f"{gain:+.1%} over DDP's buckets ({_where(job)}); all hidden would be {_hidden(_DDP, answers):+.0%}",
        "undecided",
        "Its baselines send a tensor at a time by the framework's own engine, and a parameter server that holds "
        "VGG-16's largest tensor alone gains from parts what no order can give: with computing and sending at most "
        "side by side, order alone is worth no more than a factor of two over nothing hidden. DDP's buckets hide most "
        "of it already, and parts of 4 MiB cost their latencies.",
    )


def _pace(answers: Answers) -> Said:
    gain, job = _gain(_PLANNED, _HOROVOD, answers)
    least, there = _gain(_PLANNED, _HOROVOD, answers, worst=True)
    return Said(
        f"{gain:+.1%} over Horovod ({_where(job)})",
        "undecided",
        f"The same plan, with segments of 4 MiB as its preemption. At the worst it is {least:+.1%} ({_where(there)}): "
        "segments cost latencies, and where backward hides the sums there is nothing to gain.",
    )


HEADLINES = (
    Headline(
        "TicTac", "up to 19.2 % more training throughput", "abstract, MLSys 2019",
        f"parameter servers in TensorFlow; {_UNSTATED}", f"{_OF}; the last 8 GPUs serve", [*_SERVED, *_TICTAC], _tictac,
    ),
    Headline(
        "ByteScheduler", "up to 196 % faster, 2.96 times the original speed", "abstract, SOSP 2019",
        f"parameter servers and allreduce, TCP and RDMA; {_UNSTATED}", f"{_OF}; parts of 4 MiB, a credit of 16 MiB",
        [*_DDP, *_CREDIT], _bytescheduler,
    ),
    Headline(
        "PACE", "up to 36 % faster than state-of-the-art solutions", "abstract, INFOCOM 2020",
        f"allreduce; {_UNSTATED}", f"{_OF}; the other solution is Horovod", [*_HOROVOD, *_PLANNED], _pace,
    ),
)  # fmt: skip
