"""Orders of pipelines as the simulator has them, held to torch's own schedules."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch.distributed.pipelining.schedules import ScheduleInterleaved1F1B  # noqa: E402

from ddpsim.schedules.pipeline import works_of  # noqa: E402


@pytest.mark.parametrize(
    ("ranks", "micro_batches", "stages"), [(2, 4, 2), (4, 8, 2), (4, 3, 3), (2, 8, 4), (4, 10, 2), (2, 1, 2)]
)
def test_interleaved_ranks_compute_in_the_order_of_torch(ranks: int, micro_batches: int, stages: int) -> None:
    made = object.__new__(ScheduleInterleaved1F1B)
    made.pp_group_size, made.n_local_stages, made._n_microbatches = ranks, stages, micro_batches
    made.number_of_rounds = max(1, micro_batches // ranks)
    made.microbatches_per_round = micro_batches // made.number_of_rounds
    for rank, works in enumerate(works_of("interleaved", ranks, micro_batches, stages)):
        actions = [action for action in made._calculate_single_rank_operations(rank) if action is not None]
        names = {"FORWARD": "forward", "FULL_BACKWARD": "backward"}
        assert works == [(names[a.computation_type.name], a.stage_index, a.microbatch_index) for a in actions]
