from __future__ import annotations

from typing import Any

import pytest

from ddpexec.running.provenance import provenance
from ddpexec.running.run import Run
from ddpexec.running.settings import RunSettings
from ddpsim.bucketing import BucketCaps
from ddpsim.common.errors import InputError
from ddpsim.trace.metrics import PARTS, summarise
from tests.ddpexec.groups import ranks
from tests.ddpexec.running.runs import CPU, trained_run

CAPS = BucketCaps(bucket_cap_mb=0.02)
RUNS: list[dict[str, Any]] = [
    {"scheme": "naive"}, {"scheme": "flat"}, {"scheme": "priority"}, {"scheme": "dear"}, {"scheme": "zero1"},
    {"overlap": "off"}, {"scheme": "dear", "accumulate": 2}, {"scheme": "zero1", "accumulate": 2, "sync": "every"},
]  # fmt: skip


def traced(rank: int) -> list[Any]:
    found = []
    for options in RUNS:
        run = trained_run(RunSettings(iterations=4, local_iterations=1, caps=CAPS, **options))
        run.provenance = provenance(run, [])
        assert run.provenance["probed"]["bytes_per_s"] > 0
        found.append((run.trace(), run.gather(run.trace()), [m.size_bytes for m in run.ddp.schedule]))
    return found


def test_a_scheme_leaves_the_trace_of_a_run() -> None:
    for options, (trace, gathered, sizes) in zip(RUNS, ranks.run(2, traced)[0], strict=True):
        summary = summarise(gathered)
        assert sum(getattr(summary, part) for part in PARTS) == pytest.approx(summary.iteration_s)
        synced = sum(it.synced for it in trace.iterations)
        assert sum(bucket.size_bytes for it in trace.iterations for bucket in it.buckets) == synced * sum(sizes)
        for it in trace.iterations:
            if "sync" not in options:  # what is gathered after no step is so before the next iteration
                sent = [bucket.size_bytes for bucket in it.buckets]
                assert sorted(sent) == (sorted(sizes) if it.synced else []), options
            assert min(it.forward_s, it.exposed_comm_s, it.optimizer_s, it.backward_compute_s) >= 0
            for bucket in it.buckets:
                assert it.start_s < bucket.launched_s <= bucket.finished_s <= bucket.written_s
        assert any(it.exposed_comm_s > 0 for it in trace.iterations)


def served(rank: int) -> Any:
    run = trained_run(RunSettings(iterations=2, local_iterations=1, caps=CAPS, scheme="parameter-server"))
    run.provenance = provenance(run, [])
    return run.local_s(), run.gather(run.trace())


def test_a_server_leaves_no_iterations_and_the_times_of_one_process_are_those_of_ranks_that_train() -> None:
    (own_s, gathered), (none, _) = ranks.run(2, served)
    assert none is None
    assert gathered.ranks == [0]
    assert gathered.provenance["local_s"] == own_s > 0
    assert gathered.provenance["servers"]["updates"] > 0


@pytest.mark.usefixtures("one_rank")
def test_a_step_of_one_s_own_takes_no_scheme() -> None:
    with pytest.raises(InputError, match="drop one"):
        Run(RunSettings(scheme="dear"), CPU, step="tests.ddpexec.capturing.own_steps:tied")
