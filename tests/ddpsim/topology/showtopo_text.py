"""Text as `rocm-smi --showtopo` prints it, of GPUs that one chooses."""

from __future__ import annotations

from collections.abc import Callable


def matrix(title: str, count: int, word: Callable[[int, int], object]) -> str:
    """Return a part as rocm-smi prints it: a heading, a header of GPUs, a row for each."""
    header = " " * 7 + "".join(f"GPU{number}".ljust(13) for number in range(count))
    rows = [
        f"GPU{row}".ljust(7)
        + "".join(str(0 if row == column else word(row, column)).ljust(13) for column in range(count))
        for row in range(count)
    ]
    return "\n".join([f"{'=' * 31} {title} {'=' * 31}", header, *rows, ""])


def showtopo(count: int, linked: Callable[[int, int], bool], numa: Callable[[int], int]) -> str:
    """Return what the command prints of GPUs of which some are `linked` by xGMI."""
    return "\n".join(
        [
            "\n============================ ROCm System Management Interface ============================",
            matrix("Weight between two GPUs", count, lambda a, b: 15 if linked(a, b) else 72),
            matrix("Hops between two GPUs", count, lambda a, b: 1 if linked(a, b) else 3),
            matrix("Link Type between two GPUs", count, lambda a, b: "XGMI" if linked(a, b) else "PCIE"),
            f"{'=' * 39} Numa Nodes {'=' * 39}",
            *(
                f"GPU[{number}]\t\t: (Topology) Numa {what}: {numa(number)}"
                for number in range(count)
                for what in ("Node", "Affinity")
            ),
            "================================== End of ROCm SMI Log ===================================",
        ]
    )
