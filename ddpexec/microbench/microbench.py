"""Measure allreduces as DDP issues them, and what DDP costs beside them; write nccl-tests' `-J` shape.

Each collective is isolated: the ranks meet at a barrier, launch, and wait, as a bucket's allreduce does, and unlike
nccl-tests, which queues many back to back. It lasts from the last rank's launch to the last rank's end, on clocks
aligned with rank 0's; the median over repetitions is reported.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import torch

from ddpexec.groups.launched import Launched
from ddpexec.groups.process_groups import wait
from ddpexec.microbench.ddp_costs import measure_costs
from ddpexec.microbench.together import measure_together
from ddpexec.microbench.under_load import SECONDS, computation_of, measure_slowdowns
from ddpexec.timing.stopwatch import Span, gather, last_to_last, span_of
from ddpsim.workload import Workload

_SECONDS_A_SIZE = 0.4
"""Seconds that the repetitions of one size are to take; chosen by hand: 15 sizes in six seconds."""
_LEAST, _MOST = 5, 200
"""Repetitions of one size, whatever those seconds allow; chosen by hand."""
_ROUNDS = 5
"""Rounds over all sizes, each with a fifth of the repetitions; chosen by hand."""

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Row:
    """An allreduce of `size_bytes` float32 bytes, in place: median seconds, and elements that came out wrong."""

    size_bytes: int
    time_s: float
    wrong: int


def microbench(
    launched: Launched,
    sizes_bytes: Sequence[int],
    workload: Workload | None,
    progress: Progress = lambda line: None,
    *,
    together: Sequence[Sequence[int]] = (),
    load_s: float = SECONDS,
) -> dict[str, object]:
    """Return the document of a whole run: collectives of every size, DDP's costs, slow-downs under `workload`.

    `together` are sizes in bytes of collectives launched at once; `load_s` is how long each of the four measurements
    under load takes.
    """
    rows = measure_allreduce(launched, sizes_bytes, progress)
    for row in rows:
        progress(f"allreduce {row.size_bytes:,} B: {row.time_s * 1e6:.1f} us")
    at_once = [measure_together(launched, sizes) for sizes in together]
    for each in at_once:
        progress(f"{len(each.sizes_bytes)} allreduces at once, {each.sizes_bytes} B: {each.time_s * 1e6:.1f} us")
    progress("costs of DDP")
    costs = measure_costs(launched)
    if workload is not None:
        progress(f"under load of {workload.name}")
        slowdowns = measure_slowdowns(launched, computation_of(workload, launched.device), load_s)
        costs |= asdict(slowdowns)
    document = _document(launched, rows, costs, workload)
    if at_once:
        document["together"] = [{"sizes": each.sizes_bytes, "time": round(each.time_s * 1e6, 3)} for each in at_once]
    return document


def measure_allreduce(
    launched: Launched, sizes_bytes: Sequence[int], progress: Progress = lambda line: None
) -> list[Row]:
    """Measure every size; every rank gets the same rows.

    The sizes are gone through in rounds, so that seconds in which the machine is slow spoil some repetitions of each
    and not every repetition of one.
    """
    communicator = launched.communicator
    whole = torch.empty(max(sizes_bytes) // 4, device=launched.device)
    tensors = [whole[: size // 4] for size in sizes_bytes]
    wrong, counts = [], []
    for tensor in tensors:
        tensor.fill_(1)
        _once(launched, tensor)
        wrong.append(int((tensor != communicator.world_size).sum()))
        guess_s = statistics.median(last_to_last([_once(launched, tensor) for _ in range(3)], communicator))
        counts.append(max(_LEAST, min(_MOST, round(_SECONDS_A_SIZE / max(guess_s, 1e-6)))))
    whole.zero_()
    spans: list[list[Span]] = [[] for _ in tensors]
    for number in range(_ROUNDS):
        progress(f"allreduces of {len(sizes_bytes)} sizes, round {number + 1} of {_ROUNDS}")
        for tensor, count, taken in zip(tensors, counts, spans, strict=True):
            taken += [_once(launched, tensor) for _ in range(number, count, _ROUNDS)]
    worst = [max(map(int, each)) for each in zip(*gather([float(w) for w in wrong], communicator), strict=True)]
    times_s = [statistics.median(last_to_last(taken, communicator)) for taken in spans]
    return [Row(*row) for row in zip(sizes_bytes, times_s, worst, strict=True)]


def _once(launched: Launched, tensor: torch.Tensor) -> Span:
    communicator = launched.communicator
    communicator.barrier()
    return span_of(lambda: wait(communicator.all_reduce(tensor, 0), communicator, "an allreduce"), launched.device)


def _document(
    launched: Launched, rows: Sequence[Row], costs: dict[str, float], workload: Workload | None
) -> dict[str, object]:
    world = launched.communicator.world_size
    results = [_result(row, world) for row in rows]
    return {
        "config": {
            "ranks": world,
            "nodes": launched.nodes,
            "backend": launched.communicator.backend,
            "device": launched.device.type,
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "isolated": True,
            "statistic": "median over repetitions, from the last rank's launch to the last rank's end",
            "in_place_only": "torch reduces in place; out_of_place repeats its figures",
            "under_load": None if workload is None else workload.name,
        },
        "results": results,
        "ddp": {name: float(f"{value:.6g}") for name, value in costs.items()},
    }


def _result(row: Row, world_size: int) -> dict[str, object]:
    algorithm = row.size_bytes / row.time_s / 1e9
    figures = {
        "time": round(row.time_s * 1e6, 3),
        "alg_bw": round(algorithm, 6),
        "bus_bw": round(algorithm * 2 * (world_size - 1) / world_size, 6),
        "nwrong": row.wrong,
    }
    shape = {"size": row.size_bytes, "count": row.size_bytes // 4, "type": "float", "redop": "sum", "root": -1}
    return {**shape, "out_of_place": figures, "in_place": figures}
