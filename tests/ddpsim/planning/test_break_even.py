import pytest

from ddpsim import InputError, Options, compare, load_topology, load_workload
from ddpsim.planning.advice import advise
from ddpsim.planning.break_even import HIDDEN, Search, check_bound
from ddpsim.planning.rows import WORTH_IT
from ddpsim.prediction.predict import predict
from ddpsim.topology.link_rates import with_link_rate

MACHINE = load_topology("p3.16xlarge")


@pytest.fixture(scope="module")
def row():
    return compare(["resnet50@recorded"], ["p3.16xlarge"], nodes=(4,)).rows[0]


@pytest.fixture(scope="module")
def advice(row):
    return advise(row, 0.8)


def step(rate, **given):
    return predict(load_workload("resnet50"), with_link_rate(MACHINE, "nic", rate), band=False, **given)


@pytest.mark.needs("minutes")
def test_beyond_its_rate_a_faster_nic_gains_under_one_percent_and_below_it_more(advice):
    found = next(each for each in advice.break_even if each.what == "link")
    fastest = step(200e9, nodes=4).iteration_s
    assert step(found.value * 1.1, nodes=4).iteration_s < fastest * (1 + WORTH_IT)
    assert step(found.value / 1.1, nodes=4).iteration_s > fastest * (1 + WORTH_IT)
    assert found.low <= found.value <= found.high


def test_where_communication_is_never_hidden_the_link_that_binds_then_is_named(advice):
    found = next(each for each in advice.break_even if each.what == "hidden")
    summary = step(200e9, nodes=4).summary
    assert (summary.exposed_comm_s + summary.buffer_broadcast_s) / summary.iteration_s > HIDDEN
    assert found.value is None
    assert found.document()["why"].startswith("at no rate: at 1.6 Tb/s")


def test_the_node_count_is_the_last_that_keeps_the_efficiency(row):
    found = Search(row, None).nodes(0.9)
    nodes = int(found.value)
    assert found.low <= nodes <= found.high

    def efficiency(count):
        return predict(load_workload("resnet50"), MACHINE, nodes=count, band=False).scaling_efficiency

    assert efficiency(nodes) >= 0.9 - 0.005
    assert efficiency(2 * nodes) < 0.9


def test_ranks_that_fit_a_machine_are_cheaper_there(advice, row):
    together = predict(load_workload("resnet50"), MACHINE, nodes=1, band=False).iteration_s
    apart = predict(load_workload("resnet50"), MACHINE, nodes=2, gpus_per_node=4, band=False).iteration_s
    assert advice.apart.together_s == pytest.approx(together, rel=1e-6)
    assert advice.apart.apart_s == pytest.approx(apart, rel=1e-6)
    assert advice.apart.cost[0] == pytest.approx(1 - together / apart, rel=1e-6)
    assert advice.apart.cost[1] <= advice.apart.cost[0] <= advice.apart.cost[2]


def test_no_sync_saves_more_the_more_steps_it_spans(advice, row):
    saved = [each.saving[0] for each in advice.accumulating]
    assert saved == sorted(saved)
    options = Options(accumulate=4)
    local = predict(load_workload("resnet50"), MACHINE, nodes=4, options=options, band=False).iteration_s
    assert saved[1] == pytest.approx(1 - local / row.prediction.iteration_s, rel=1e-3)


def test_one_node_has_no_rate_and_a_bound_is_a_share():
    row = compare(["resnet50@recorded"], ["p3.16xlarge"], nodes=(1,)).rows[0]
    assert list(Search(row, None).rates()) == []
    for wrong in (0.0, 1.0):
        with pytest.raises(InputError, match="no bound of an efficiency"):
            check_bound(wrong)
