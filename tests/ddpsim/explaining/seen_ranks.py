"""Ranks as `ddpsim.explaining` sees them, made up: what they take is known, and so what must be found."""

from __future__ import annotations

from collections.abc import Mapping

from ddpsim.explaining.seen import PARTS, SeenCollective, SeenRank, SeenStep

STEP_S, WIRE_S = 0.100, 0.010
HOST = {"input": 0.002, "forward": 0.030, "backward": 0.050, "optimizer": 0.004, "hooks": 0.001}


def ranks(
    count: int = 4,
    steps: int = 8,
    late: Mapping[int, Mapping[str, float]] | None = None,
    device: Mapping[int, Mapping[str, float]] | None = None,
    clocks: Mapping[int, float] | None = None,
    lags: Mapping[int, float] | None = None,
    wire_s: float = WIRE_S,
    size_bytes: int = 1 << 20,
    clock: str | None = None,
) -> list[SeenRank]:
    """Return ranks that make one allreduce a step: it begins when the last has come, and ends for all together.

    Args:
        late: by rank and phase, what its host takes longer.
        device: likewise of devices that are half as busy as the host; a rank without an entry has none.
        clocks: by rank, what its clock is ahead.
        lags: by rank, how much later than the others it leaves.
        clock: the name of the clock that they say to share.
    """
    late = late or {}
    own = {rank: {phase: s + late.get(rank, {}).get(phase, 0.0) for phase, s in HOST.items()} for rank in range(count)}
    before = {rank: sum(each.values()) - each["optimizer"] for rank, each in own.items()}
    found = []
    for rank in range(count):
        offset = (clocks or {}).get(rank, 0.0)
        made = []
        for number in range(steps):
            # No rank's rhythm is exact: a thousandth to and fro, another on each.
            jitter = 1e-4 * ((7 * number + 3 * rank) % 5 - 2)
            start = number * STEP_S + offset
            last = max(before.values()) + number * STEP_S + offset
            end = last + wire_s + (lags or {}).get(rank, 0.0)
            collective = SeenCollective(
                0, "all_reduce", size_bytes, 10, start + before[rank], start + before[rank], end
            )
            host = {phase: seconds + (jitter if phase == "forward" else 0.0) for phase, seconds in own[rank].items()}
            busy = {} if device is None else {p: s / 2 + device.get(rank, {}).get(p, 0.0) for p, s in HOST.items()}
            busy = {phase: s for phase, s in busy.items() if phase in ("forward", "backward", "optimizer")}
            parts = {**dict.fromkeys(PARTS, 0.0), "forward_s": STEP_S}
            made.append(SeenStep(number, start, start + STEP_S, parts, host, busy, (collective,)))
        found.append(
            SeenRank(rank, count, "gloo", "cpu", f"rank{rank}.json", "kineto", "ddp", tuple(made), clock=clock)
        )
    return found
