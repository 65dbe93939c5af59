"""Headlines of Parallax: sparse gradients by servers, dense ones by allreduce."""

from __future__ import annotations

from dataclasses import replace

from studies.paper.claim import near
from studies.paper.figure import Answers
from studies.paper.headlines.headline import Headline, Said
from studies.paper.headlines.points import Job, Machine

_SERVERS = Machine("eight servers", "P100-PCIe", 6, "100Gb/s", "infiniband", nodes=8)
_ABSTRACT = "abstract, arXiv:1808.02621"
_ASSUMED = "eight servers of six P100 on PCIe, 100 Gb/s; the last server's GPUs serve"
_IMAGES = Job("resnet50", "P100-PCIe", 32, _SERVERS, "parallax:servers=6,density=1,sparse=bn1.bias")
_DENSE = replace(_IMAGES, scheme="horovod")


def _images(answers: Answers) -> Said:
    ratio = answers[_DENSE]["iteration_s"] / answers[_IMAGES]["iteration_s"]
    return Said(
        f"{ratio:.2f} of Horovod's pace a GPU that trains",
        near(ratio, 1.0),
        "Nothing of an image model is sparse, so that both allreduce all gradients; one bias goes to the servers here, "
        "for a model without anything sparse is refused.",
    )


HEADLINES = (
    Headline(
        30, "Parallax", "image models at Horovod's pace", _ABSTRACT, "48 GPUs",
        f"ResNet-50 in batches of 32; {_ASSUMED}", [_IMAGES, _DENSE], _images,
    ),
)  # fmt: skip
