"""The AWS post's rows: what each rests on, against closed forms, and verdicts of answers made up."""

from __future__ import annotations

import pytest

from ddpsim.collectives.conditions import CollectiveOptions
from ddpsim.collectives.execute import make_transport
from ddpsim.schedules.dataparallel import dataparallel
from ddpsim.schedules.setup import SchemeInputs
from ddpsim.topology.spec import load_topology
from studies.accuracy.aws_post import measured_s
from studies.accuracy.systems import TABLES
from studies.paper import aws, aws_setup
from studies.paper.aws_step import step_of
from studies.paper.figure import Answers

BATCH_BYTES = 64 * 3 * 224 * 224 * 4


@pytest.fixture(scope="module")
def answers() -> Answers:
    return {point: point.answer() for point in aws.FIGURE.points()}


def test_one_gpu_is_the_posts_by_construction_and_copies_are_what_its_step_leaves(answers: Answers) -> None:
    alone = answers[aws_setup.on_pascal(aws_setup.BOARD, mode="alone")]
    assert 64 / alone["iteration_s"] == pytest.approx(184.5)
    assert alone["input_s"] == pytest.approx(64 / 184.5 - 0.328)
    assert alone["input_s"] == pytest.approx(BATCH_BYTES / aws_setup.COPY_Bps)


def test_dataparallel_is_one_gpus_step_four_copies_and_all_parameters_there_and_back(answers: Answers) -> None:
    found = answers[aws.ON_FOUR[0].central]
    placement = load_topology(aws_setup.BOARD).place()
    transport = make_transport(placement, "nccl", None, CollectiveOptions(algorithm="ring"))
    parameters = step_of("GTX1080Ti", 64, 0.328).parameters
    schedule = dataparallel(SchemeInputs(parameters=parameters, buckets=[tuple(range(len(parameters)))], world_size=4))
    wire_s = sum(transport.time_s(each.op, each.size_bytes) for each in schedule)
    four_copies_s = 4 * BATCH_BYTES / aws_setup.COPY_Bps
    assert found["input_s"] == pytest.approx(four_copies_s, rel=1e-3)
    assert found["iteration_s"] == pytest.approx(0.328 + four_copies_s + wire_s, rel=0.04)
    ahead = answers[aws.ON_FOUR[1].central]
    assert ahead["iteration_s"] == pytest.approx(found["iteration_s"] - four_copies_s, rel=0.01)


def test_a_flow_of_half_the_rate_takes_twice_as_long_for_the_last_bucket(answers: Answers) -> None:
    slow, fast = (answers[aws_setup.on_volta(where, 2)]["last_s"] for where in (aws_setup.FLOW, aws_setup.P3))
    assert slow == pytest.approx(2 * fast, rel=0.05)


def test_what_was_measured_on_four_is_the_tables() -> None:
    assert pytest.approx(measured_s(TABLES / "v100_AR_GPU4.csv"), rel=0.02) == aws.MEASURED_ON_FOUR_S


def test_the_slowest_gpu_sets_the_pace_of_all(answers: Answers) -> None:
    mix, slow, fast = (answers[point]["iteration_s"] for point in (aws._MIX, aws._SLOW, aws._FAST))
    assert mix > slow > 3 * fast


def test_verdicts_are_those_of_the_central_points(answers: Answers) -> None:
    made = aws.FIGURE.reproduce(answers)
    assert [claim.number for claim in made.claims] == list(range(15, 25))
    claims = iter(made.claims)
    for group in (aws.ON_FOUR, aws.ON_AWS):
        rates = {row.label: row.images / answers[row.central]["iteration_s"] for row in group}
        simulated, posts = sorted(group, key=lambda row: rates[row.label]), sorted(group, key=lambda row: row.paper)
        for row in group:
            near = abs(rates[row.label] / row.paper - 1) <= 0.15
            holds = near and simulated.index(row) == posts.index(row)
            assert next(claims).verdict == ("holds" if holds else "fails")
    slower = {point: {**found, "iteration_s": 2 * found.get("iteration_s", 0)} for point, found in answers.items()}
    assert {claim.verdict for claim in aws.FIGURE.reproduce(slower).claims[:7]} == {"fails"}
    stars = [bar.reported for panel in made.panels for bar in panel.bars]
    assert stars[0] == pytest.approx(1e3 * 256 / 610)
    assert stars[4:] == pytest.approx([1e3 * 76.4 / 196, 1e3 * 37.6 / 98, 1e3 * 45.6 / 98])
