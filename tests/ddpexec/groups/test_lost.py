"""Ranks that time out tell each other by way of the store, so that those that do not are known."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

torch = pytest.importorskip("torch")

from ddpexec.groups import lost  # noqa: E402


def silent(rank: int, group: str) -> list[int]:
    """Return what a rank of two learns when a collective of `group` has timed out."""
    communicator: Any = mock.Mock(rank=rank, main=mock.Mock(group_name=group))
    with (
        mock.patch.object(lost, "ANSWER_S", 0.1),
        mock.patch("ddpexec.groups.lost.dist.get_process_group_ranks") as ranks,
    ):
        ranks.return_value = [0, 1]
        return lost._silent_ranks(communicator)


@pytest.mark.usefixtures("one_rank")
def test_an_answer_counts_for_its_own_group() -> None:
    assert silent(1, "first") == [0]
    assert silent(0, "first") == []
    assert silent(0, "second") == [1]
