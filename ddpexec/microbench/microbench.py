"""Measure allreduces as DDP issues them, and what DDP costs beside them; write nccl-tests' `-J` shape.

Each collective is isolated: the ranks meet at a barrier, launch, and wait, as a bucket's allreduce does, and unlike
nccl-tests, which queues many back to back. It lasts from the last rank's launch to the last rank's end, on clocks
aligned with rank 0's; the median over repetitions is reported.

The measurement runs in stages (`Stages`), each written to `FILE.part` when it is done: the same command goes on where
it was stopped.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ddpexec.groups.launched import Launched
from ddpexec.groups.process_groups import Communicator
from ddpexec.microbench.ddp_costs import measure_costs
from ddpexec.microbench.under_load import SECONDS, computation_of, measure_slowdowns
from ddpexec.timing.stopwatch import Span, allreduces_span, gather, gather_other_work, measure_last_to_last
from ddpsim.common.errors import InputError
from ddpsim.common.files import MOST_BYTES, json_text, open_regular, remove, replace
from ddpsim.common.other_work import ProcessorClock
from ddpsim.workload import Workload

Progress = Callable[[str], None]


def part_of(path: Path) -> Path:
    """Return the file of finished stages, which stands until `path` can be written."""
    return path.with_name(f"{path.name}.part")


class Stages:
    """Carries out stages in turn; rank 0 keeps what they returned in `PATH.part`, and every rank begins with that.

    What another command has kept there, or what is no such document, is begun anew; a symbolic link or a pipe that
    stands there is not followed, and refused on every rank.

    Args:
        communicator: whose ranks measure together; every rank makes one.
        path: of the file that is to come about; None keeps nothing.
        asked: what is measured; only what was kept for the same counts.
        progress: told what is taken up.
    """

    def __init__(
        self,
        communicator: Communicator,
        path: Path | None = None,
        asked: Mapping[str, object] | None = None,
        progress: Progress = lambda line: None,
    ) -> None:
        self._part = None if path is None else part_of(path)
        self._first, self._progress = communicator.rank == 0, progress
        self._request = json.loads(json.dumps(asked or {}))
        what = "the exchange of what was measured before"
        self._done: dict[str, Any] = communicator.ask_rank_zero(self._load_kept, what)
        if self._done:
            progress(f"goes on after {len(self._done)} stages of {self._part}")

    def do(self, name: str, work: Callable[[], Any]) -> Any:
        """Return what the stage `name` returned before, else what `work` returns now: JSON's values, of all ranks."""
        if name not in self._done:
            self._done[name] = work()
            if self._first and self._part is not None:
                document = {"asked": self._request, "stages": self._done}
                replace(self._part, json_text(document))
        return self._done[name]

    def _load_kept(self) -> dict[str, Any]:
        if self._part is None or not os.path.lexists(self._part):
            return {}
        try:
            with os.fdopen(open_regular(self._part, os.O_RDONLY), "rb") as file:
                raw = file.read(MOST_BYTES + 1)
        except OSError as error:
            what, remedy = f"cannot be read: {error.strerror}", "remove it, or name another file to write"
            raise InputError(what, place=str(self._part), remedy=remedy) from error
        try:
            document: Any = json.loads(raw) if len(raw) <= MOST_BYTES else None
            request, stages = document["asked"], dict(document["stages"])
        except (ValueError, KeyError, TypeError, RecursionError):
            request, stages = None, {}
        if request != self._request:
            self._progress(f"begins anew: {self._part} was kept for something else")
            return {}
        return stages


_SECONDS_A_SIZE = 0.4
"""Seconds that the repetitions of one size are to take; chosen by hand: 15 sizes in six seconds."""
_LEAST, _MOST = 5, 200
"""Repetitions of one size, whatever those seconds allow; chosen by hand."""
_ROUNDS = 5
"""Rounds over all sizes, each with a fifth of the repetitions; chosen by hand."""
_TOGETHER = 5
"""Repetitions of allreduces launched at once, after one that is discarded; chosen by hand."""


@dataclass(frozen=True, slots=True)
class MicrobenchRow:
    """Holds the median seconds and the wrong elements of allreduces of `size_bytes` float32 bytes in place."""

    size_bytes: int
    time_s: float
    wrong: int


@dataclass(frozen=True, slots=True)
class ComputingLoad:
    """What ranks compute while collectives are measured once more, and for how long in each of four measurements.

    Attributes:
        workload: None measures nothing under load.
    """

    workload: Workload | None = None
    seconds: float = SECONDS


def microbench(
    launched: Launched,
    sizes_bytes: Sequence[int],
    load: ComputingLoad,
    progress: Progress = lambda line: None,
    *,
    together: Sequence[Sequence[int]] = (),
    keep: Path | None = None,
) -> dict[str, object]:
    """Return the document of a whole run: collectives of every size, DDP's costs, slow-downs under `load`.

    `together` are sizes in bytes of collectives launched at once. `keep` is the file that the document is for, beside
    which stages are kept until it is whole.
    """
    clock, workload, load_s = ProcessorClock(), load.workload, load.seconds
    request = {"sizes": list(sizes_bytes), "together": [list(sizes) for sizes in together], "load_s": load_s}
    stages = Stages(launched.communicator, keep, {**request, **_config(launched, workload)}, progress)
    rows = measure_allreduce(launched, sizes_bytes, progress, stages)
    for row in rows:
        progress(f"allreduce {row.size_bytes:,} B: {row.time_s * 1e6:.1f} us")
    at_once = [
        stages.do(f"together {number}", partial(_measure_together, launched, sizes))
        for number, sizes in enumerate(together)
    ]
    for each in at_once:
        progress(f"{len(each['sizes'])} allreduces at once, {tuple(each['sizes'])} B: {each['time']:.1f} us")
    progress("costs of DDP")
    costs = dict(stages.do("costs", lambda: measure_costs(launched)))
    if workload is not None:
        progress(f"under load of {workload.name}, about {4 * load_s:.0f} s")
        computing = workload
        costs |= stages.do("under load", lambda: _measure_under_load(launched, computing, load_s))
    document = _document(launched, rows, costs, workload)
    other = gather_other_work(clock, launched.communicator)
    if other is not None:
        document["config"] = {**_config(launched, workload), **other.document()}
    if at_once:
        document["together"] = at_once
    return document


def forget(keep: Path, launched: Launched) -> None:
    """Remove the file of finished stages of `keep`, which is written now."""
    if launched.communicator.rank == 0:
        remove(part_of(keep))


def _measure_together(launched: Launched, sizes: Sequence[int]) -> dict[str, object]:
    """Measure allreduces launched at once on the main process group, which queues those it does not keep in flight."""
    tensors = [torch.zeros(size // 4, device=launched.device) for size in sizes]
    spans = [_run_once(launched, *tensors) for _ in range(1 + _TOGETHER)]
    time_s = statistics.median(measure_last_to_last(spans[1:], launched.communicator))
    return {"sizes": tuple(sizes), "time": round(time_s * 1e6, 3)}


def _measure_under_load(launched: Launched, workload: Workload, load_s: float) -> dict[str, float]:
    return asdict(measure_slowdowns(launched, computation_of(workload, launched.device), load_s))


def measure_allreduce(
    launched: Launched,
    sizes_bytes: Sequence[int],
    progress: Progress = lambda line: None,
    stages: Stages | None = None,
) -> list[MicrobenchRow]:
    """Measure every size; every rank gets the same rows.

    The sizes are gone through in rounds, so that seconds in which the machine is slow spoil some repetitions of each
    and not every repetition of one.
    """
    communicator = launched.communicator
    stages = stages or Stages(communicator)
    whole = torch.empty(max(sizes_bytes) // 4, device=launched.device)
    tensors = [whole[: size // 4] for size in sizes_bytes]
    first = stages.do("first", lambda: _run_first(launched, tensors))
    whole.zero_()
    rounds: list[list[list[float]]] = []
    left = ""
    for number in range(_ROUNDS):
        name = f"round {number + 1} of {_ROUNDS}"
        progress(f"allreduces of {len(sizes_bytes)} sizes, {name}{left}")
        begin = time.monotonic()
        rounds.append(stages.do(name, partial(_round, launched, tensors, first["counts"], number)))
        left_s = (time.monotonic() - begin) * (_ROUNDS - number - 1)
        left = f", about {left_s:.0f} s left" if left_s > 1 else ""
    times_s = [statistics.median([s for each in rounds for s in each[place]]) for place in range(len(tensors))]
    return [MicrobenchRow(*row) for row in zip(sizes_bytes, times_s, first["wrong"], strict=True)]


def _run_first(launched: Launched, tensors: Sequence[torch.Tensor]) -> dict[str, list[int]]:
    """Return for each size how many elements come out wrong on the worst rank, and how often it is to be repeated."""
    communicator = launched.communicator
    wrong, counts = [], []
    for tensor in tensors:
        tensor.fill_(1)
        _run_once(launched, tensor)
        wrong.append(int((tensor != communicator.world_size).sum()))
        guess_s = statistics.median(measure_last_to_last([_run_once(launched, tensor) for _ in range(3)], communicator))
        counts.append(max(_LEAST, min(_MOST, round(_SECONDS_A_SIZE / max(guess_s, 1e-6)))))
    worst = [max(map(int, each)) for each in zip(*gather([float(w) for w in wrong], communicator), strict=True)]
    return {"wrong": worst, "counts": counts}


def _round(
    launched: Launched, tensors: Sequence[torch.Tensor], counts: Sequence[int], number: int
) -> list[list[float]]:
    """Return the seconds of one round's repetitions of each size."""
    taken = [
        [_run_once(launched, tensor) for _ in range(number, n, _ROUNDS)]
        for tensor, n in zip(tensors, counts, strict=True)
    ]
    times_s = iter(measure_last_to_last([span for each in taken for span in each], launched.communicator))
    return [[next(times_s) for _ in each] for each in taken]


def _run_once(launched: Launched, *tensors: torch.Tensor) -> Span:
    launched.communicator.barrier()
    return allreduces_span(launched.communicator, *tensors)


def _document(
    launched: Launched, rows: Sequence[MicrobenchRow], costs: dict[str, float], workload: Workload | None
) -> dict[str, object]:
    results = [_result(row, launched.communicator.world_size) for row in rows]
    return {
        "config": _config(launched, workload),
        "results": results,
        "ddp": {name: float(f"{value:.6g}") for name, value in costs.items()},
    }


def _config(launched: Launched, workload: Workload | None) -> dict[str, object]:
    return {
        "ranks": launched.communicator.world_size,
        "nodes": launched.nodes,
        "backend": launched.communicator.backend,
        "device": launched.device.type,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "isolated": True,
        "statistic": "median over repetitions, from the last rank's launch to the last rank's end",
        "in_place_only": "torch reduces in place; out_of_place repeats its figures",
        "under_load": None if workload is None else workload.name,
    }


def _result(row: MicrobenchRow, world_size: int) -> dict[str, object]:
    algorithm = row.size_bytes / row.time_s / 1e9
    figures = {
        "time": round(row.time_s * 1e6, 3),
        "alg_bw": round(algorithm, 6),
        "bus_bw": round(algorithm * 2 * (world_size - 1) / world_size, 6),
        "nwrong": row.wrong,
    }
    shape = {"size": row.size_bytes, "count": row.size_bytes // 4, "type": "float", "redop": "sum", "root": -1}
    return {**shape, "out_of_place": figures, "in_place": figures}
