"""Parts of a DGX-1V, and what NCCL's rings take on every choice of its GPUs beside Blink's trees."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations, pairwise, permutations

from studies.paper.headlines.points import allreduce_s

_CUBE_MESH = (
    (0, 3, 2), (0, 4, 2), (1, 2, 2), (1, 5, 2), (2, 3, 2), (4, 7, 2), (5, 6, 2), (6, 7, 2),
    (0, 1, 1), (0, 2, 1), (1, 3, 1), (2, 6, 1), (3, 7, 1), (4, 5, 1), (4, 6, 1), (5, 7, 1),
)  # fmt: skip
"""NVLinks of `topologies/dgx-1v.yaml`."""


@dataclass(frozen=True, slots=True)
class Allocations:
    """Of every choice of some GPUs of a DGX-1V: what NCCL's rings take beside Blink's trees.

    Attributes:
        size_bytes: of the allreduce.
    """

    size_bytes: int

    def answer(self) -> list[dict[str, float | None]]:
        """Return the times of each choice of 3 to 8 GPUs that NVLinks join: by rings, by Blink, and over PCIe alone.

        The last is None where a ring of NVLinks joins all.
        """
        return [self._of(gpus) for count in range(3, 9) for gpus in combinations(range(8), count) if _joined(gpus)]

    def _of(self, gpus: tuple[int, ...]) -> dict[str, float | None]:
        from ddpsim.topology.spec import parse_topology

        whole = parse_topology(part_of_dgx_1v(gpus), "part of a DGX-1V").place(1)
        found: dict[str, float | None] = {
            algorithm: allreduce_s(whole, algorithm, self.size_bytes) for algorithm in ("ring", "blink")
        }
        if ring_of_nvlinks(gpus):
            return found | {"pcie": None}
        bare = parse_topology(part_of_dgx_1v(gpus, nvlinks=False), "part of a DGX-1V").place(1)
        return found | {"pcie": allreduce_s(bare, "ring", self.size_bytes)}


def _joined(gpus: tuple[int, ...]) -> bool:
    """Whether NVLinks join all of them, which Blink's trees need."""
    reached, new = set(), {gpus[0]}
    while new:
        reached |= new
        new = {b for a in new for x, y, _ in _CUBE_MESH for b in (x, y) if a in (x, y) and b in gpus} - reached
    return len(reached) == len(gpus)


def ring_of_nvlinks(gpus: tuple[int, ...]) -> bool:
    """Whether NVLinks make a ring of all of them."""
    links = {frozenset(pair[:2]) for pair in _CUBE_MESH}
    first, *rest = gpus
    rings = ([first, *order, first] for order in permutations(rest))
    return any(all(frozenset(ends) in links for ends in pairwise(ring)) for ring in rings)


def part_of_dgx_1v(gpus: tuple[int, ...], *, nvlinks: bool = True) -> str:
    """Return the YAML of some GPUs of a DGX-1V, with their NVLinks or without."""
    place = {gpu: number for number, gpu in enumerate(gpus)}
    pairs = [[place[a], place[b], count] for a, b, count in _CUBE_MESH if a in place and b in place]
    switches = ""
    for number in range(4):
        here = [place[gpu] for gpu in (2 * number, 2 * number + 1) if gpu in place]
        if here:
            switches += f"      - {{socket: {number // 2}, gpus: {here}}}\n"
    return (
        f"name: part of dgx-1v\nnode:\n  gpus: {{count: {len(gpus)}, model: V100}}\n"
        + (f"  nvlink: {{bandwidth: 20GB/s, pairs: {pairs}}}\n" if nvlinks else "")
        + f"  pcie:\n    generation: 3\n    switches:\n{switches}"
        "  cpu: {sockets: 2, vendor: intel, model: broadwell, bandwidth: 6GB/s}\n"
    )
