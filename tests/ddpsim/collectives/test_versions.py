"""NCCL's constants by release."""

from __future__ import annotations

from ddpsim.collectives.nccl.versions import release


def test_versions_between_two_known_ones_have_the_older_ones_constants() -> None:
    assert [release(v).first for v in (2003, 2005, 2010, 2011, 2013, 2022, 2023, 2030)] == [
        2005,
        2005,
        2009,
        2011,
        2013,
        2013,
        2023,
        2023,
    ]
