import dataclasses

import pytest

from ddpsim import compare, load_topology, load_workload
from ddpsim.common.errors import InputError, UnknownNameError
from ddpsim.planning.goal import RateGoal
from ddpsim.planning.prices import Price
from ddpsim.prediction.models import Model
from ddpsim.prediction.predict import predict
from ddpsim.simulation.job import Job
from ddpsim.topology.link_rates import with_link_rate

PRICES = {"dgx-1v": Price(10.0, "USD", "2026-11-22"), "dgx-a100": Price(30.0, "USD", "2026-11-22")}


@pytest.fixture(scope="module")
def found():
    return compare(["vgg16"], ["dgx-1v", "dgx-a100"], nodes=(1, 2), prices=PRICES, samples_per_epoch=1_281_167)


def test_rows_are_predictions_of_each_machine_and_node_count(found):
    assert [(row.machine, row.nodes) for row in found.rows] == [
        (machine, count) for machine in ("dgx-1v", "dgx-a100") for count in (1, 2)
    ]
    model = Model.of("vgg16")
    for row in found.rows:
        machine = load_topology(row.machine)
        alone = predict(Job(model.on(machine), machine, nodes=row.nodes))
        assert row.prediction.iteration_s == pytest.approx(alone.iteration_s, rel=1e-6)
        assert row.step_s[1:] == pytest.approx((alone.low_s, alone.high_s), rel=1e-3)
        assert row.prediction.local_s == alone.local_s


def test_cost_is_price_times_time(found):
    row = found.rows[1]
    assert row.per_hour == 20.0
    seconds = 1_281_167 / (16 * 32) * row.prediction.iteration_s
    assert row.epoch_s[0] == pytest.approx(seconds)
    assert row.per_epoch[0] == pytest.approx(seconds / 3600 * 20)
    assert row.per_million_samples[0] == pytest.approx(row.per_epoch[0] * 1e6 / 1_281_167)
    assert row.per_epoch[1] < row.per_epoch[0] < row.per_epoch[2]


def test_the_front_has_what_nothing_beats_in_both_speed_and_cost(found):
    points = {id(row): (row.per_million_samples[0], row.prediction.iteration_s / row.ranks) for row in found.rows}
    for row in found.rows:
        cost, seconds = points[id(row)]
        beaten = any(c <= cost and s <= seconds and (c, s) != (cost, seconds) for c, s in points.values())
        assert row.pareto is not beaten
    assert found.best is min(found.rows, key=lambda row: row.per_million_samples[0])


def test_the_cheapest_that_meets_a_goal_is_the_best(found):
    fastest = max(row.samples_per_s[0] for row in found.rows)
    asked = dataclasses.replace(found, goal=RateGoal(fastest))
    assert asked.best.samples_per_s[0] == fastest
    assert asked.best is not found.best


def test_a_goal_that_nothing_meets_names_what_comes_nearest():
    with pytest.raises(InputError, match=r"nearest comes dgx-1v, 2 nodes: .* h \(") as caught:
        compare(["resnet50@recorded"], ["dgx-1v"], nodes=(1, 2), goal=RateGoal.by(60.0, 1_281_167, 90))
    assert caught.value.place == "deadline"
    with pytest.raises(InputError, match="samples/s") as caught:
        compare(["resnet50@recorded"], ["dgx-1v"], goal=RateGoal(1e9))
    assert caught.value.place == "samples_per_second"


def test_a_rate_of_a_link_is_the_machine_with_that_link():
    rates = [("nic", 1.25e9), ("nic", 12.5e9)]
    found = compare(["vgg16@recorded"], ["p3.16xlarge", "gh200-quad"], nodes=(2,), link_rates=rates)
    alone = predict(Job(load_workload("vgg16"), with_link_rate(load_topology("p3.16xlarge"), "nic", 1.25e9), nodes=2))
    assert found.rows[0].prediction.iteration_s == pytest.approx(alone.iteration_s, rel=1e-6)
    assert found.rows[0].link_rate == 1.25e9
    assert found.rows[0].bound.link == "nic0-network"
    assert found.rows[0].bound.exposed_share > found.rows[1].bound.exposed_share
    assert found.rows[0].prediction.topology.name == "p3.16xlarge"


def test_prices_and_rates_may_be_as_they_are_typed():
    given = {"prices": {"dgx-1v": "10USD/h"}, "link_rates": "10,100Gb/s"}
    typed = compare(["mlp@recorded"], ["dgx-1v"], nodes=(2,), **given)
    assert [row.link_rate for row in typed.rows] == [1.25e9, 12.5e9]
    assert {row.price for row in typed.rows} == {Price(10.0, "USD")}
    with pytest.raises(InputError, match="names no currency"):
        compare(["mlp@recorded"], ["dgx-1v"], prices={"dgx-1v": "10/h"})


def test_a_link_that_no_machine_has_is_refused_and_one_that_some_have_is_not():
    with pytest.raises(UnknownNameError, match="unknown link 'nvlnk'"):
        compare(["resnet50@recorded"], ["dgx-1v"], link_rates=[("nvlnk", 1e9)])
    found = compare(["resnet50@recorded"], ["dgx-1v", "4x1080ti-pcie"], link_rates=[("nvlink", 5e9)])
    assert [(row.machine, row.link_rate) for row in found.rows] == [("dgx-1v", 5e9), ("4x1080ti-pcie", None)]


def test_records_are_flat_and_the_repr_is_short(found):
    records = found.records()
    assert len(records) == 4
    assert all(not isinstance(value, dict | list) for record in records for value in record.values())
    assert records[0]["cost_currency"] == "USD"
    assert len(repr(found)) < 250


def test_efficiency_has_no_doubt_of_the_pace(found):
    """What slows a step alone as much as among others, as a device's pace, leaves its efficiency nearly as it is."""
    row = found.rows[0]
    middle, low, high = row.efficiency
    assert low <= middle <= high
    step = row.step_s
    assert (high - low) / middle < (step[2] - step[1]) / step[0] / 2
