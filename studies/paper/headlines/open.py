"""Headlines whose set-up is not stated: one line each."""

from __future__ import annotations

from studies.paper.headlines.headline import Open

_ABSTRACT = "models, GPUs, network and framework"

OPEN = (
    Open("TicTac", "up to 19.2 % more training throughput", "abstract, MLSys 2019", _ABSTRACT),
    Open("ByteScheduler", "up to 196 % faster, 2.96 times the original speed", "abstract, SOSP 2019", _ABSTRACT),
    Open("PACE", "up to 36 % faster than state-of-the-art solutions", "abstract, INFOCOM 2020", _ABSTRACT),
    Open(
        "Parallax", "NLP models up to 6.02 times as fast as by Horovod, 2.8 times as by TensorFlow's servers",
        "abstract, arXiv:1808.02621", "the models, and how much of them is sparse",
    ),
    Open(
        "TF ParameterServer", "VGG-16 on 16 GPUs: 0.6 times one GPU", "horovod/horovod pull request 44",
        "how many servers there were, and where",
    ),
    Open("TF MultiWorkerMirrored", "no figure of its own", "searched: tensorflow.org, its repositories", "a figure"),
    Open(
        "GradientFlow", "AlexNet on 512 GPUs: 410.2 times one GPU", "abstract, arXiv:1902.06855",
        "the batch, the share of chunks that is sent, and one GPU's pace",
    ),
    Open(
        "GradientFlow", "popular systems on 64 GPUs: 2.5 times one GPU", "abstract, arXiv:1902.06855",
        "which systems, and which model",
    ),
    Open(
        "BlueConnect", "synchronization overhead 87 % less than prior schemes', ResNet-50 on 192 GPUs",
        "abstract, MLSys 2019", "which schemes it was held against",
    ),
    Open(
        "PipeDream", "up to 5.3 times faster to high accuracy than intra-batch parallelism", "abstract, SOSP 2019",
        "which of its models and clusters",
    ),
    Open(
        "Mesh-TensorFlow", "Transformers of up to 5 billion parameters on up to 512 TPU cores",
        "abstract, arXiv:1811.02084", "a time",
    ),
)  # fmt: skip
