from itertools import combinations, pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ddpsim.planning.best_buckets import best_partition


def pipeline_end(lengths, ready, sizes, seconds):
    end, at = 0.0, 0
    for length in lengths:
        at += length
        end = max(end, ready[at - 1]) + float(seconds(np.array(float(sum(sizes[at - length : at])))))
    return end


def every_partition(count):
    for cuts in range(count):
        for chosen in combinations(range(1, count), cuts):
            edges = [0, *chosen, count]
            yield [b - a for a, b in pairwise(edges)]


@given(
    st.lists(st.tuples(st.floats(0, 5), st.integers(1, 50)), min_size=1, max_size=8),
    st.floats(0, 3),
    st.floats(0.001, 0.5),
)
def test_no_partition_ends_earlier(gradients, latency, per_byte):
    ready = np.cumsum([interval for interval, _ in gradients]).tolist()
    sizes = [size for _, size in gradients]

    def seconds(size):
        return latency + per_byte * size

    found = best_partition(ready, sizes, seconds)
    assert sum(found) == len(sizes)
    best = min(pipeline_end(lengths, ready, sizes, seconds) for lengths in every_partition(len(sizes)))
    assert pipeline_end(found, ready, sizes, seconds) <= best * (1 + 1e-12)


def test_free_latency_gives_one_bucket_a_gradient_and_a_dear_one_few():
    ready, sizes = [1.0, 2.0, 3.0, 4.0], [10, 10, 10, 10]
    assert best_partition(ready, sizes, lambda size: 0.09 * size) == [1, 1, 1, 1]
    assert best_partition(ready, sizes, lambda size: 100 + 0.01 * size) == [4]
