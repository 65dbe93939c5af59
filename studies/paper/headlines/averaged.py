"""Headlines of systems that average parameters now and then: SlowMo, PostLocalSGD."""

from __future__ import annotations

from dataclasses import replace

from ddpsim.schedules.averaging import OUTER_PASSES
from studies.paper.claim import all_of, near
from studies.paper.figure import Answers
from studies.paper.headlines.headline import Headline, Said
from studies.paper.headlines.points import Job, Machine

_ETHERNET = Machine("32 servers", "V100", 8, "10Gb/s", "ethernet", 1, nodes=32)
_BASE = Job("resnet50", "V100", 32, _ETHERNET, "averaging:12")
_SLOWMO, _DDP = (replace(_BASE, scheme=scheme) for scheme in ("slowmo:12", "ddp"))


def _slowmo(answers: Answers) -> Said:
    slowmo, base, ddp = (answers[job]["iteration_s"] for job in (_SLOWMO, _BASE, _DDP))
    return Said(
        f"{slowmo / base:.3f} of the base optimizer's step, {slowmo / ddp:.2f} of DDP's",
        near(slowmo / base, 1.0),
        f"The outer step takes what {OUTER_PASSES:g} copies of the parameters do, once in twelve steps; it sends "
        "nothing of its own.",
    )


_MODELS = ("resnet50", "vgg16", "bert-base")
_STEPS = 8
_LOCAL = [Job(model, "V100", 32, Machine("p3.8xlarge", gpus=4, nodes=4), f"averaging:{_STEPS}") for model in _MODELS]
_LARGE = [replace(job, scheme="ddp", accumulate=_STEPS) for job in _LOCAL]


def _local(answers: Answers) -> Said:
    ratios = [
        answers[one]["iteration_s"] / answers[other]["iteration_s"] for one, other in zip(_LOCAL, _LARGE, strict=True)
    ]
    told = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    return Said(
        f"{told} of a micro-batch's time of {_STEPS} added up ({', '.join(_MODELS)})",
        all_of(near(ratio, 1.0) == "holds" for ratio in ratios),
        "Both send all parameters' bytes once in eight batches. Local SGD updates eight times instead of once, its "
        "averages hide under the next forward where gradients hide under the last backward.",
    )


HEADLINES = (
    Headline(
        25, "SlowMo", "its run time is on par with that of the base optimizer", "abstract, arXiv:1910.00643",
        "the overhead is spread over many updates; image classification and translation",
        "ResNet-50 in batches of 32 on 256 V100, 10 Gb/s, an average each 12 steps of local SGD",
        [_SLOWMO, _BASE, _DDP], _slowmo,
    ),
    Headline(
        26, "PostLocalSGD", "local SGD communicates as mini-batch SGD of as many samples does, and is as efficient",
        "abstract of 2018, arXiv:1808.07217; that of 2020 says the same of efficiency and scaling", "no machine",
        f"ResNet-50, VGG-16 and BERT-base in batches of 32 on 4 x p3.8xlarge, {_STEPS} steps between averages",
        [*_LOCAL, *_LARGE], _local,
    ),
)  # fmt: skip
