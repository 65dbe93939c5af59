"""What is asked of the input stage, and when its loading processes have batches ready."""

from __future__ import annotations

import pytest

from ddpsim.common.errors import InputError, WorkloadError
from ddpsim.common.options.input_stage import InputStage, Loader, PAGEABLE_Bps, input_stage
from ddpsim.workload.files import workload_document, workload_from
from tests.ddpsim.simulation.builders import workload


def test_it_is_read_as_people_write_it():
    found = input_stage("load=12ms,copy=38MB,pipelined")
    assert found == InputStage(load_s=0.012, copy_bytes=38_000_000, pipelined=True)
    assert found.loaders == 1
    assert input_stage("load=1s,workers=4").loaders == 4


def test_pinned_copies_are_as_fast_as_links_and_others_as_the_hosts_own_copy():
    rates = {text: input_stage(f"copy=1MB{text}").limit_Bps for text in ("", ",pinned", ",queued", ",rate=2GB/s")}
    assert rates == {"": PAGEABLE_Bps, ",pinned": float("inf"), ",queued": float("inf"), ",rate=2GB/s": 2e9}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("copy=38MB,queued,pipelined", "two ways"),
        ("workers=4", "neither loads nor copies"),
        ("copy=38", "38"),
        ("load=12ms,workers=many", "many"),
        ("load=12ms,load=13ms", "twice"),
        ("loads=12ms", "loads=12ms"),
    ],
)
def test_what_cannot_be_is_refused_by_name(text, named):
    with pytest.raises(InputError, match=named):
        input_stage(text)


@pytest.mark.parametrize(
    ("change", "named"),
    [({"rate_Bps": 0.0}, "rate_Bps"), ({"load_s": -1.0}, "load_s"), ({"queued": True, "pipelined": True}, "two ways")],
)
def test_a_workload_file_whose_stage_cannot_be_is_refused(change, named):
    document = workload_document(workload(device="V100"))
    document["input_stage"] = {"load_s": 0.1, "copy_bytes": 10, **change}
    with pytest.raises(WorkloadError, match=named):
        workload_from(document, "file")


@pytest.mark.parametrize(("load_s", "workers", "step_s"), [(0.1, 0, 0.3), (0.1, 1, 0.3), (0.4, 1, 0.3), (0.9, 4, 0.2)])
def test_a_loop_runs_at_the_pace_of_the_slower_of_its_step_and_its_loaders(load_s, workers, step_s):
    loader, now_s, starts = Loader(InputStage(load_s=load_s, workers=workers)), 0.0, []
    for _ in range(40):
        starts.append(loader.take(now_s))
        now_s = starts[-1] + step_s
    period = starts[-1] - starts[-2]
    assert period == pytest.approx(step_s + load_s if workers == 0 else max(step_s, load_s / workers))


def test_loaders_stop_where_they_are_far_enough_ahead():
    loader = Loader(InputStage(load_s=1.0, workers=2))
    assert loader.take(0.0) == 1.0
    # Four batches were asked for at the start and lie ready; the fifth was asked for when the first was taken.
    assert [loader.take(100.0) for _ in range(3)] == [100.0] * 3
    assert loader.take(100.0) == 100.0
    assert [loader.take(100.0) for _ in range(4)] == pytest.approx([101.0, 101.5, 102.0, 102.5])
