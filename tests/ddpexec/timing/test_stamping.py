from __future__ import annotations

import statistics
import time
import warnings

import pytest

torch = pytest.importorskip("torch")

from ddpexec.ddp.wrapper import DistributedDataParallel  # noqa: E402
from ddpexec.models import build  # noqa: E402
from ddpexec.timing.clock import HostClock  # noqa: E402
from ddpexec.timing.observe import Note, Observer  # noqa: E402
from ddpexec.timing.stamping import bucket_s, stamping_s  # noqa: E402
from tests.ddpexec.groups import ranks  # noqa: E402


class SlowEnds(HostClock):
    """A clock whose end of a collective costs a tenth of a millisecond more."""

    def watch(self, work, position=0):
        def late(_):
            end = time.perf_counter() + 1e-4
            while time.perf_counter() < end:
                pass

        work.get_future().add_done_callback(late)
        return super().watch(work, position)


def test_the_callback_at_a_collectives_end_is_part_of_a_buckets_cost() -> None:
    assert 0 < bucket_s(HostClock()) < 0.9e-4
    assert 1e-4 < bucket_s(SlowEnds()) < 3e-4


def steps(rank: int, model: str, count: int) -> tuple[Note, float]:
    warnings.simplefilter("ignore")
    built = build(model)
    observer = Observer(HostClock())
    ddp = DistributedDataParallel(built.module, bucket_cap_mb=5, observer=observer)
    batch = built.make_batch(1)
    seconds = []
    for index in range(count):
        begin = time.perf_counter()
        observer.begin(index, synced=True)
        built.loss(ddp(*batch.inputs), batch).backward()
        observer.close()
        seconds.append(time.perf_counter() - begin)
    note = observer.notes[-1]
    for bucket in note.buckets:
        bucket.finished = bool
    return note, statistics.median(seconds)


@pytest.mark.parametrize("model", ["resnet50", "mlp"])
def test_stamping_costs_less_than_one_percent_of_a_step(model: str) -> None:
    ((note, seconds),) = ranks.run(1, steps, model, 4)
    assert len(note.hooks) > 4
    assert len(note.buckets) > 4
    cost = stamping_s(HostClock(), note)
    assert 0 < cost < 0.01 * seconds, f"{cost * 1e6:.0f} us of {seconds * 1e3:.1f} ms"
