"""Headlines of allreduces made for a machine: Blink's packed trees, BlueConnect's levels."""

from __future__ import annotations

from ddpsim.units import MIB
from studies.paper.claim import near
from studies.paper.figure import Answers
from studies.paper.headlines.allocations import Allocations
from studies.paper.headlines.headline import Headline, Said
from studies.paper.headlines.points import Allreduce, Machine

_BLINK_BYTES = 512 * MIB
_ALLOCATIONS = Allocations(_BLINK_BYTES)
BLINK = 8.0


def _blink(answers: Answers) -> Said:
    rows = answers[_ALLOCATIONS]
    today = max(row["ring"] / row["blink"] for row in rows)
    then = max(row["pcie"] / row["blink"] for row in rows if row["pcie"] is not None)
    without = sum(row["pcie"] is not None for row in rows)
    return Said(
        f"{then:.1f} times where NCCL goes over PCIe, {today:.2f} beside today's NCCL",
        near(then, BLINK),
        f"Of {len(rows)} choices of GPUs of a DGX-1V, {without} have no ring of NVLinks. NCCL of 2019 went over PCIe "
        "there, and the ratio is that of NVLink's rate to what PCIe carries across sockets, whose priors are of "
        "another board than the paper's. Today's NCCL goes through the GPU between (NVB) instead, and what Blink gains "
        "is links that rings leave idle.",
    )


_MINSKY = Machine("48 servers", "P100", 4, "100Gb/s", "infiniband", 2, "18GB/s", nodes=48)
RESNET_BYTES = 25_557_032 * 4
_RING, _LEVELS = (Allreduce(_MINSKY, algorithm, RESNET_BYTES) for algorithm in ("ring", "blueconnect"))


def _blueconnect(answers: Answers) -> Said:
    ring, levels = (answers[point]["seconds"] for point in (_RING, _LEVELS))
    return Said(
        f"{levels * 1e3:.1f} ms beside {ring * 1e3:.1f} of NCCL's ring ({1 - levels / ring:+.0%} saved)",
        "undecided",
        "What it was held against is not stated. A ring that enters and leaves each server once sends as many bytes "
        "through its card as BlueConnect's levels do, so that nothing is left to gain but the latencies "
        "of a ring of all GPUs; 87 % asks for a baseline that crosses the network with every GPU's bytes, or sums on "
        "the host.",
    )


HEADLINES = (
    Headline(
        "Blink", f"up to {BLINK:g} times faster model synchronization than NCCL", "abstract, arXiv:1910.04940",
        "spanning trees packed into the links that a job was given; NCCL of 2019",
        f"choices of 3 to 8 GPUs of a DGX-1V, {_BLINK_BYTES // MIB} MiB; NCCL then went over PCIe where no ring of "
        "NVLinks joins all (from memory of the paper's text, which was not found)",
        [_ALLOCATIONS], _blink,
    ),
    Headline(
        "BlueConnect", "synchronization overhead 87 % less than prior schemes', ResNet-50 on 192 GPUs",
        "abstract, MLSys 2019", "192 GPUs", "48 servers of four P100 with two NVLinks between each two, 100 Gb/s",
        [_RING, _LEVELS], _blueconnect,
    ),
)  # fmt: skip
