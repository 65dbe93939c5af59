"""A trace read in pieces is the trace read whole, wherever the pieces end; a damaged one is one error."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddpsim.common.errors import TraceError
from ddpsim.trace.json import streaming
from ddpsim.trace.json.streaming import StreamedTrace
from tests.profile import examples

_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=examples(60), deadline=None)
@given(
    before=st.dictionaries(st.text(max_size=5).filter(lambda key: key != "traceEvents"), _VALUES, max_size=3),
    events=st.lists(_VALUES, max_size=6),
    indent=st.sampled_from([None, 0, 2]),
    piece=st.integers(1, 40),
)
def test_pieces_of_any_size_give_what_the_whole_gives(tmp_path_factory, before, events, indent, piece):
    path = tmp_path_factory.mktemp("streamed") / "trace.json"
    path.write_text(json.dumps({**before, "traceEvents": events, "after": [1, {"a": 2}]}, indent=indent))
    original, streaming.PIECE = streaming.PIECE, piece
    try:
        read = StreamedTrace(path, TraceError, "again")
        assert list(read.events()) == events
    finally:
        streaming.PIECE = original
    assert read.header == {**before, "traceEvents": [], "after": [1, {"a": 2}]}


def test_a_bare_list_is_a_list_of_events(tmp_path: Path):
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(b'[{"ph": "X"}, 3]'))
    assert list(StreamedTrace(path, TraceError, "again").events()) == [{"ph": "X"}, 3]


def test_truncated_anywhere_is_one_error_that_says_so(tmp_path: Path):
    text = json.dumps({"head": [1, 2], "traceEvents": [{"name": "aten::mul", "ts": 12.5}] * 3, "tail": "x"}, indent=1)
    path = tmp_path / "t.json"
    for end in range(1, len(text)):
        path.write_text(text[:end])
        with pytest.raises(TraceError, match=r"t\.json: not JSON: .* line \d+, column \d+.*; again"):
            list(StreamedTrace(path, TraceError, "again").events())
    path.write_text("")
    with pytest.raises(TraceError, match=r"t\.json: the file is empty; again"):
        list(StreamedTrace(path, TraceError, "again").events())
    path.write_text(text + "]")
    with pytest.raises(TraceError, match="Extra data"):
        list(StreamedTrace(path, TraceError, "again").events())


def test_a_damaged_archive_is_one_error(tmp_path: Path):
    packed = gzip.compress(json.dumps({"traceEvents": list(range(5000))}).encode())
    path = tmp_path / "t.json.gz"
    for end in (3, 20, len(packed) // 2, len(packed) - 4):
        path.write_bytes(packed[:end])
        with pytest.raises(TraceError, match=r"t\.json\.gz: .*(truncated|damaged|not JSON)"):
            list(StreamedTrace(path, TraceError, "again").events())


@settings(max_examples=examples(40), deadline=None)
@given(
    events=st.lists(
        st.dictionaries(st.sampled_from(["a", "}, {", "b"]), _VALUES | st.just("}, {"), max_size=3), max_size=30
    ),
    indent=st.sampled_from([None, 0, 2]),
)
def test_objects_read_many_at_once_are_those_of_the_file(tmp_path_factory, events, indent):
    path = tmp_path_factory.mktemp("batches") / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}, indent=indent))
    assert [event for batch in StreamedTrace(path, TraceError, "again").batches() for event in batch] == events


def test_most_objects_come_together_and_an_odd_one_by_itself(tmp_path: Path):
    path = tmp_path / "trace.json"
    events = [{"n": n} for n in range(50)]
    path.write_text(json.dumps({"traceEvents": events}))
    assert [len(batch) for batch in StreamedTrace(path, TraceError, "again").batches()] == [1, 48, 1]
    path.write_text(json.dumps({"traceEvents": [*events, {"half a pair": "\ud800"}, *events]}))
    assert list(StreamedTrace(path, TraceError, "again").events()) == [*events, {"half a pair": "\ud800"}, *events]


def test_an_error_among_many_objects_has_its_line(tmp_path: Path):
    path = tmp_path / "trace.json"
    lines = ",\n".join('{"n": 1}' if n != 30 else '{"n" 1}' for n in range(50))
    path.write_text(f'{{"traceEvents": [\n{lines}]}}')
    with pytest.raises(TraceError, match="Expecting ':' delimiter at line 32, column 6"):
        list(StreamedTrace(path, TraceError, "again").events())
