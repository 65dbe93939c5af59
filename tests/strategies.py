"""Hypothesis strategies shared by the tests."""

from __future__ import annotations

from hypothesis import strategies as st

from ddpsim.bucketing import Parameter

DTYPES = ("float32", "float16", "bfloat16", "float64", "complex64")
DEVICES = ("cpu", "meta", "cuda:0", "cuda:1", "cuda:3")


def parameters(
    min_size: int = 1, max_size: int = 40, dtypes: tuple[str, ...] = DTYPES, devices: tuple[str, ...] = DEVICES
) -> st.SearchStrategy[list[Parameter]]:
    """Lists of parameters of mixed dtypes, devices and sparsity, some of them empty."""
    one = st.tuples(
        st.integers(0, 300), st.sampled_from(dtypes), st.sampled_from(devices), st.sampled_from([0] * 9 + [1])
    )
    return st.lists(one, min_size=min_size, max_size=max_size).map(
        lambda rows: [
            Parameter(f"p{i}", (n,), dtype, dev, bool(sparse)) for i, (n, dtype, dev, sparse) in enumerate(rows)
        ]
    )


def limits() -> st.SearchStrategy[list[int | None]]:
    """Lists of bucket limits in bytes, None for no limit."""
    return st.lists(st.one_of(st.none(), st.integers(0, 3000)), min_size=1, max_size=5)


@st.composite
def groups(draw: st.DrawFn, max_parameters: int = 30) -> list[tuple[int, ...]]:
    """Buckets as groups of registration indices: a random partition of a random permutation."""
    count = draw(st.integers(1, max_parameters))
    order = draw(st.permutations(range(count)))
    cuts = sorted(draw(st.sets(st.integers(1, count - 1), max_size=8))) if count > 1 else []
    return [tuple(order[a:b]) for a, b in zip([0, *cuts], [*cuts, count], strict=True)]


json_values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 10**7),
    st.floats(allow_nan=False),
    st.text(max_size=3),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)
"""What a malformed document may hold in place of anything."""
