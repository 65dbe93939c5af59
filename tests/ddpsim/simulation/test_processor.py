import pytest
import simpy

from ddpsim.simulation.beside import UNDISTURBED, Beside, Share
from ddpsim.simulation.processor import Processor, Stream


def run(env, process):
    env.run(env.process(process))


def test_work_beside_a_collective_takes_longer_by_the_slowdown():
    env = simpy.Environment()
    processor = Processor(env, Beside(2.0, lambda size_bytes: Share(0, 0)), lambda busy: None)

    def collective():
        yield env.timeout(1.0)
        processor.collective_begins(1)
        yield env.timeout(2.0)
        processor.collective_ends(1)

    env.process(collective())
    run(env, processor.work(4.0))
    assert env.now == pytest.approx(5.0)  # 1 undisturbed, 2 at half pace do 1, then 2 more


def test_collectives_in_flight_together_take_the_sum_of_their_shares():
    env = simpy.Environment()
    beside = Beside(None, lambda size_bytes: Share(size_bytes / 100, 0.0))
    processor = Processor(env, beside, lambda busy: None)

    def collective(begin_s, size_bytes):
        yield env.timeout(begin_s)
        processor.collective_begins(size_bytes)
        yield env.timeout(2.0)
        processor.collective_ends(size_bytes)

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


def test_a_stream_keeps_order_and_counts_idle_and_waiting_apart():
    env = simpy.Environment()
    stream = Stream(env, Processor(env, UNDISTURBED, lambda busy: None))
    collective = env.timeout(9.0)
    stream.not_before(2.0)
    stream.work(3.0)
    first = stream.mark()
    stream.wait(collective)
    second = stream.mark()
    env.run(second)
    assert (first.value, second.value) == (5.0, 9.0)
    assert (stream.idle_s, stream.waited_s) == (2.0, 4.0)
    env.run(12.0)
    last = stream.mark()
    env.run(last)
    assert stream.idle_s == 5.0


def test_notes_between_work_are_told_when_the_stream_got_there_whatever_the_speed():
    env, told = simpy.Environment(), []
    processor = Processor(env, Beside(2.0, lambda size_bytes: Share(0, 0)), lambda busy: None)
    stream = Stream(env, processor)

    def collective():
        yield env.timeout(1.5)
        processor.collective_begins(1)
        yield env.timeout(2.0)
        processor.collective_ends(1)

    env.process(collective())
    stream.note(told.append)
    for _ in range(4):
        stream.work(1.0)
        stream.note(told.append)
    env.run(stream.mark())
    assert told == pytest.approx([0.0, 1.0, 2.5, 4.0, 5.0])


def test_work_that_the_host_queues_late_is_not_done_with_that_before_it():
    env, told, busy = simpy.Environment(), [], []
    stream = Stream(env, Processor(env, UNDISTURBED, lambda now: busy.append((now, env.now))))
    for queued_s in (0.0, 0.0, 3.0, 3.5):
        stream.host_s = queued_s
        stream.work(1.0)
        stream.note(told.append)
    env.run(stream.mark())
    assert told == [1.0, 2.0, 4.0, 5.0]
    assert busy == [(True, 0.0), (False, 2.0), (True, 3.0), (False, 4.0), (True, 4.0), (False, 5.0)]
    assert stream.idle_s == 1.0


def test_a_bar_that_still_holds_parts_the_work_around_it():
    env, told = simpy.Environment(), []
    stream = Stream(env, Processor(env, UNDISTURBED, lambda now: None))
    stream.work(1.0)
    stream.not_before(2.0)
    stream.work(1.0)
    stream.note(told.append)
    env.run(stream.mark())
    assert (told, stream.idle_s) == ([3.0], 1.0)
