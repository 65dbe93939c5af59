"""Ranks as `ddpsim.explaining` sees them, made up: what they take is known, and so what must be found."""

from __future__ import annotations

from collections.abc import Mapping

from ddpsim.explaining.ranks import TracedRank
from ddpsim.trace.records import BucketTimes, Iteration

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
) -> list[TracedRank]:
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
            arrived = start + before[rank]
            bucket = BucketTimes(
                index=0, operation="all_reduce", size_bytes=size_bytes, parameters=tuple(range(10)), ready_s=arrived,
                launched_s=arrived, started_s=arrived, wire_s=None, finished_s=end, written_s=end,
            )  # fmt: skip
            host = {phase: seconds + (jitter if phase == "forward" else 0.0) for phase, seconds in own[rank].items()}
            busy = {} if device is None else {p: s / 2 + device.get(rank, {}).get(p, 0.0) for p, s in HOST.items()}
            busy = {phase: s for phase, s in busy.items() if phase in ("forward", "backward", "optimizer")}
            made.append(
                Iteration(
                    rank=rank, index=number, start_s=start, end_s=start + STEP_S, forward_s=STEP_S,
                    backward_compute_s=0.0, exposed_comm_s=0.0, buffer_broadcast_s=0.0, optimizer_s=0.0, input_s=0.0,
                    overhead_s=0.0, buckets=(bucket,), host_s=host, device_s=busy,
                )
            )  # fmt: skip
        found.append(
            TracedRank(rank, count, "gloo", "cpu", f"rank{rank}.json", "kineto", "ddp", tuple(made), clock=clock)
        )
    return found
