from __future__ import annotations

import time

import pytest

torch = pytest.importorskip("torch")

from ddpexec.capturing.models import build  # noqa: E402
from ddpexec.ddp.wrapper import DistributedDataParallel  # noqa: E402
from ddpexec.timing.clock import HostClock  # noqa: E402
from ddpexec.timing.observe import Observer  # noqa: E402
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
    assert bucket_s(HostClock()) > 0
    assert bucket_s(SlowEnds()) > 1e-4


@pytest.mark.parametrize("model", ["resnet50", "mlp"])
@ranks.on(1)
def test_the_cost_of_stamping_is_told_for_every_hook_and_bucket(rank: int, model: str) -> None:
    built = build(model)
    observer = Observer(HostClock())
    ddp = DistributedDataParallel(built.module, bucket_cap_mb=5, observer=observer)
    batch = built.make_batch(1)
    for index in range(2):
        observer.begin(index, synced=True)
        built.loss(ddp(*batch.inputs), batch).backward()
        observer.close()
    note = observer.notes[-1]
    assert len(note.hooks) > 4
    assert len(note.buckets) > 4
    assert stamping_s(HostClock(), note) > 0
