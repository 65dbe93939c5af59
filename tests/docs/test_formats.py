"""Every key of the documents that people read by program is on the page of formats."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import ddpsim
from ddpsim.planning.by_scheme import choose
from ddpsim.planning.sweep import swept_document

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "formats.md"
JOB = ("mlp", "dgx-1v")


def documents() -> Iterator[dict[str, object]]:
    """Yield a predict document, and rows of a plan, of one with schemes and of a comparison."""
    prediction = ddpsim.predict(*JOB)
    yield swept_document(prediction)
    yield ddpsim.plan(*JOB, caps=5).rows[0].document()
    yield ddpsim.compare(*JOB).rows[0].document()
    machine = ddpsim.load_topology("dgx-1v")
    yield choose("mlp", [machine], ["flat"]).choices[0].rows[0].document()


def test_every_key_is_said() -> None:
    named = set(re.findall(r"\w+", PAGE.read_text()))
    for document in documents():
        keys = {*document, *document["memory"]}
        whole = {re.sub(r"_(low|high)(_s)?$", r"\2", key) for key in keys}
        assert sorted(whole - named) == []
