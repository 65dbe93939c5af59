import pytest
import simpy

from ddpsim.common.operation import Operation
from ddpsim.simulation.contention import UNDISTURBED, ComputeSlowdown, Processor, Share
from ddpsim.simulation.graph import Collective


def one(size_bytes=1):
    return Collective(size_bytes, Operation.ALLREDUCE, 0, 0)


def run(env, process):
    env.run(env.process(process))


def test_collectives_in_flight_together_take_the_sum_of_their_shares():
    env = simpy.Environment()
    slowdown = ComputeSlowdown(None, lambda collective: Share(collective.size_bytes / 100, 0.0))
    processor = Processor(env, slowdown, lambda busy: None)

    def collective(begin_s, size_bytes):
        yield env.timeout(begin_s)
        processor.collective_begins(one(size_bytes))
        yield env.timeout(2.0)
        processor.collective_ends(one(size_bytes))

    env.process(collective(1.0, 20))
    env.process(collective(2.0, 30))
    run(env, processor.work(4.0))
    # By the pace of each second: 1, 0.8, 0.5, 0.7, and 1 again.
    assert env.now == pytest.approx(5.0)


def test_busy_is_told_when_work_begins_and_ends():
    env, told = simpy.Environment(), []
    processor = Processor(env, UNDISTURBED, lambda busy: told.append((busy, env.now)))
    run(env, processor.work(3.0))
    run(env, processor.work(0.0))
    assert told == [(True, 0.0), (False, 3.0)]
