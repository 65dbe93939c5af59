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
_DENSITIES = (0.01, 0.1)
_WORDS = [
    Job("bert-base", "P100-PCIe", 8, _SERVERS, f"parallax:servers=6,sparse=embeddings.word,density={density}")
    for density in _DENSITIES
]
_ALL, _SERVED = (replace(_WORDS[0], scheme=scheme) for scheme in ("horovod", "parameter-server:servers=6"))


def _images(answers: Answers) -> Said:
    ratio = answers[_DENSE]["iteration_s"] / answers[_IMAGES]["iteration_s"]
    return Said(
        f"{ratio:.2f} of Horovod's pace a GPU that trains",
        near(ratio, 1.0),
        "Nothing of an image model is sparse, so that both allreduce all gradients; one bias goes to the servers here, "
        "for a model without anything sparse is refused.",
    )


def _words(answers: Answers) -> Said:
    few, many = (answers[_ALL]["iteration_s"] / answers[job]["iteration_s"] for job in _WORDS)
    served = answers[_SERVED]["iteration_s"] / answers[_WORDS[0]]["iteration_s"]
    share = " and ".join(f"{density:.0%}" for density in _DENSITIES)
    return Said(
        f"{few:.2f} and {many:.2f} times Horovod's pace where a batch touches {share} of BERT's words, {served:.1f} "
        "times a parameter server's",
        "undecided",
        "The abstract names no model. Most of BERT is dense; of a language model of which most is a table of words, "
        "Horovod gathers the rows of all ranks on each, which is what Parallax saves. Here Horovod sums the table "
        "dense, and servers that share one card are as slow as their rows are many.",
    )


HEADLINES = (
    Headline(
        "Parallax", "image models at Horovod's pace", _ABSTRACT, "48 GPUs",
        f"ResNet-50 in batches of 32; {_ASSUMED}", [_IMAGES, _DENSE], _images,
    ),
    Headline(
        "Parallax", "NLP models up to 6.02 times as fast as by Horovod, 2.8 times as by TensorFlow's servers",
        _ABSTRACT, "48 GPUs", f"BERT-base in batches of 8; {_ASSUMED}", [*_WORDS, _ALL, _SERVED], _words,
    ),
)  # fmt: skip
