from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from ddpexec.timing.clock import HostClock  # noqa: E402
from ddpexec.timing.observe import BucketNote, Note  # noqa: E402
from ddpexec.timing.records import Records, collective_starts, write_back  # noqa: E402
from ddpsim.trace.metrics import overlap_ratio  # noqa: E402
from ddpsim.trace.records import Trace  # noqa: E402

times = st.floats(0, 1, allow_nan=False)


@given(st.lists(st.tuples(times, times), max_size=12), st.integers(1, 3), st.integers(1, 3))
def test_a_collective_begins_when_launched_or_when_a_place_comes_free(
    spans: list[tuple[float, float]], in_flight: int, groups: int
) -> None:
    launched: list[float] = []
    started: list[float] = []
    finished: list[float] = []
    for launch, length in spans:
        launched.append(max([launch, *launched[-1:]]))
        earlier = [finished[i] for i in range(len(started)) if i % groups == len(started) % groups]
        candidates = [moment for moment in (launched[-1], *earlier) if moment >= launched[-1]]
        started.append(min(t for t in candidates if sum(end > t for end in earlier) < in_flight))
        finished.append(started[-1] + length)
    assert collective_starts(launched, finished, in_flight, groups) == started


@given(st.lists(st.tuples(times, st.integers(1, 1000)), min_size=1, max_size=6), times, st.floats(0.001, 3))
def test_waiting_and_writing_back_fill_the_end_of_backward(
    buckets: list[tuple[float, int]], begin: float, length: float
) -> None:
    finished, sizes = [end for end, _ in buckets], [size for _, size in buckets]
    end = max(begin, *finished) + length
    written, waited = write_back(begin, end, finished, sizes)
    assert written[-1] == pytest.approx(end)
    assert all(usable >= done for usable, done in zip(written, finished, strict=True))
    assert 0 <= waited <= end - begin


def test_the_parts_of_a_step_are_what_was_stamped() -> None:
    note = Note(3, True, 10.0)
    note.buffers, note.module, note.returned = (10.1, 10.3), (10.3, 11.0), 11.1
    note.backward, note.finish, note.optimizer, note.end = (11.4, 15.0), (14.0, 15.0), (15.0, 15.5), 16.0
    note.hooks = {1: (12.0, 12.25), 0: (13.0, 13.25)}
    note.buckets = [BucketNote(0, (0, 1), 80, 13.2, lambda: 14.75, (14.0, 14.8), 14.9)]
    it = Records(0, HostClock(), "gloo", offset_s=100.0).iteration(note, 0)
    assert (it.start_s, it.end_s) == (110.0, 116.0)
    assert it.forward_s == pytest.approx(0.7 + 0.3)
    assert it.backward_compute_s == pytest.approx(3.6 - 0.5 - 1.0)
    assert it.exposed_comm_s == pytest.approx(0.8)
    assert it.buffer_broadcast_s == pytest.approx(0.2)
    assert it.optimizer_s == pytest.approx(0.5)
    assert [(g.parameter, g.hook_s) for g in it.gradients] == [(1, 112.0), (0, 113.0)]
    [bucket] = it.buckets
    assert (bucket.ready_s, bucket.started_s, bucket.finished_s, bucket.written_s) == (113.0, 113.2, 114.75, 114.9)


@pytest.mark.parametrize("waited", [(14.0, 14.5), None], ids=["each is waited for", "torch waits for all"])
def test_a_stamp_taken_late_ends_with_the_wait(waited: tuple[float, float] | None) -> None:
    note = Note(0, True, 10.0)
    note.backward, note.finish, note.end = (11.0, 14.5), (14.0, 14.5), 16.0
    note.hooks = {0: (12.0, 12.1)}
    note.buckets = [BucketNote(0, (0,), 80, 12.2, lambda: 16.5, waited)]
    [bucket] = Records(0, HostClock(), "gloo").iteration(note, 0).buckets
    assert bucket.finished_s == bucket.written_s == 14.5


def test_a_phase_computes_outside_the_waits_that_it_holds() -> None:
    note = Note(3, True, 10.0)
    note.module, note.returned, note.backward, note.finish = (10.0, 11.0), 11.0, (11.0, 13.0), (12.5, 13.0)
    note.optimizer, note.end = (13.0, 16.0), 16.0
    note.hooks = {0: (12.0, 12.25)}
    note.buckets = [BucketNote(0, (0,), 80, 12.6, lambda: 14.5, None, 14.5)]
    note.waits = [(13.0, 14.5), (14.5, 15.0)]
    records = Records(0, HostClock(), "gloo")
    it = records.iteration(note, 0)
    spans = records.spans(note, it)
    optimizer = [(s.start_s, s.end_s) for s in spans if s.kernel and s.name == "optimizer"]
    assert optimizer == [(15.0, 16.0)]
    trace = Trace(2, "gloo", [it], spans)
    # The message leaves after backward has computed and is there before the optimizer does: nothing hides it.
    assert overlap_ratio(trace, 0) == 0
