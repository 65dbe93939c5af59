"""Headlines of allreduces made for a machine: Blink's packed trees."""

from __future__ import annotations

from ddpsim.common.units import MIB
from studies.paper.claim import near
from studies.paper.figure import Answers
from studies.paper.headlines.allocations import Allocations
from studies.paper.headlines.headline import Headline, Said

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
        "another board than the paper's. Today's NCCL goes through the GPU between (NVB) instead.",
    )


HEADLINES = (
    Headline(
        41, "Blink", f"up to {BLINK:g} times faster model synchronization than NCCL", "abstract, arXiv:1910.04940",
        "spanning trees packed into the links that a job was given; NCCL of 2019",
        f"choices of 3 to 8 GPUs of a DGX-1V, {_BLINK_BYTES // MIB} MiB; NCCL then went over PCIe where no ring of "
        "NVLinks joins all (from memory of the paper's text, which was not found)",
        [_ALLOCATIONS], _blink,
    ),
)  # fmt: skip
