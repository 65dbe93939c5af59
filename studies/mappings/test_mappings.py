"""Rows of published mappings are what they say, and some of them are predicted as the committed page has it."""

from __future__ import annotations

from studies.mappings.mappings import by_series, lines, predict_series
from studies.mappings.predicting import CLUSTERS
from studies.mappings.rows import judging, rows


def test_every_row_has_a_rank_for_each_gpu_and_whole_micro_batches() -> None:
    for row in rows():
        assert row.data * row.tensor * row.stages == row.gpus, row
        assert row.micro_batches * row.micro_batch * row.data == row.global_batch, row
        assert row.step_s > 0


def test_every_other_series_by_name_judges() -> None:
    names = sorted({row.series for row in rows()})
    judges = judging(rows())
    assert [name in judges for name in names] == [bool(at % 2) for at in range(len(names))]


def test_a_cluster_without_a_step_on_one_gpu_says_so() -> None:
    of_one = {row.series for row in rows() if row.gpus == 1}
    assert {each.one for each in CLUSTERS.values() if each.one} <= of_one


def test_pipelines_beside_tensor_ranks_are_predicted_within_a_fifth_and_in_order() -> None:
    """The two rows that take least: the same steps as in the page."""
    found = predict_series(by_series()["dlperf-oneflow-1536x16-gbs512"])
    assert all(abs(each.error) < 0.2 for each in found)
    assert any("8 x 1 x 4" in line for line in lines([found]))
