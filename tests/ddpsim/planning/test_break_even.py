import pytest

from ddpsim import InputError, Options, compare, load_topology, load_workload, plan
from ddpsim.cli.compare import text
from ddpsim.common.units import format_time
from ddpsim.planning.advice import advise
from ddpsim.planning.break_even import HIDDEN, Search, check_bound
from ddpsim.planning.comparison_row import efficiency_of
from ddpsim.planning.worth import WORTH_IT
from ddpsim.prediction.answers import Answers
from ddpsim.prediction.predict import predict
from ddpsim.simulation.job import Job
from ddpsim.topology.link_rates import with_link_rate

MACHINE = load_topology("p3.16xlarge")


@pytest.fixture(scope="module")
def row():
    return compare(["resnet50@recorded"], ["p3.16xlarge"], nodes=(4,)).rows[0]


@pytest.fixture(scope="module")
def advice(row):
    job = Job(load_workload("resnet50@recorded"), MACHINE, nodes=4)
    return advise(Answers(), (job, row), 0.8)


def step(rate, **given):
    return predict(Job(load_workload("resnet50"), with_link_rate(MACHINE, "nic", rate), **given), band=False)


@pytest.mark.needs("minutes")
def test_beyond_its_rate_a_faster_nic_gains_under_one_percent_and_below_it_more(advice):
    found = next(each for each in advice.break_even if each.what == "link")
    fastest = step(200e9, nodes=4).iteration_s
    assert step(found.value * 1.1, nodes=4).iteration_s < fastest * (1 + WORTH_IT)
    assert step(found.value / 1.1, nodes=4).iteration_s > fastest * (1 + WORTH_IT)
    assert (found.low or 0) <= found.value <= (found.high or 200e9)


def test_where_communication_is_never_hidden_the_link_that_binds_then_is_named(advice):
    found = next(each for each in advice.break_even if each.what == "hidden")
    summary = step(200e9, nodes=4).summary
    assert (summary.exposed_comm_s + summary.buffer_broadcast_s) / summary.iteration_s > HIDDEN
    assert found.value is None
    assert found.document()["why"].startswith("at no rate: even at 1.6 Tb/s")


def test_the_node_count_is_the_last_that_keeps_the_efficiency(row):
    found = Search(row, None).nodes(0.9)
    nodes = int(found.value)
    assert (found.low or 1) <= nodes <= (found.high or 1024)

    def efficiency(count):
        return predict(Job(load_workload("resnet50"), MACHINE, nodes=count), band=False).scaling_efficiency

    assert efficiency(nodes) >= 0.9 - 0.005
    assert efficiency(2 * nodes) < 0.9


def test_ranks_that_fit_a_machine_are_cheaper_there(advice, row):
    together = predict(Job(load_workload("resnet50"), MACHINE, nodes=1), band=False).iteration_s
    apart = predict(Job(load_workload("resnet50"), MACHINE, nodes=2, gpus_per_node=4), band=False).iteration_s
    assert advice.apart.together_s == pytest.approx(together, rel=1e-6)
    assert advice.apart.apart_s == pytest.approx(apart, rel=1e-6)
    assert advice.apart.cost[0] == pytest.approx(1 - together / apart, rel=1e-6)
    assert advice.apart.cost[1] <= advice.apart.cost[0] <= advice.apart.cost[2]


def test_no_sync_saves_more_the_more_steps_it_spans(advice, row):
    saved = [each.saving[0] for each in advice.accumulating]
    assert saved == sorted(saved)
    options = Options(accumulate=4)
    local = predict(Job(load_workload("resnet50"), MACHINE, nodes=4, options=options), band=False).iteration_s
    assert saved[1] == pytest.approx(1 - local / row.prediction.iteration_s, rel=1e-3)


@pytest.mark.parametrize(("name", "machine", "nodes"), [("resnet50", "p3.16xlarge", 4), ("mlp", "dgx-a100", 2)])
def test_buckets_matter_at_the_own_rate_where_the_plan_says_so(name, machine, nodes):
    row = compare([name], [machine], nodes=(nodes,)).rows[0]
    planned = plan(name, [load_topology(machine)], nodes=[nodes]).rows[0].document()
    found = next(each for each in Search(row, None).rates() if each.what == "buckets").document()
    for key in ("torch", "gain", "gain_low", "gain_high", "trial"):
        assert found[key] == planned[key]
    own_rate = max(nic.bandwidth for nic in row.prediction.placement.classes[0].template.nics)
    if found["rate_Bps"] is not None:
        matters = planned["best_found"]["gain"] >= WORTH_IT
        assert (found["rate_Bps"] > own_rate) is matters
        assert found["rate_Bps_low"] <= found["rate_Bps"] <= found["rate_Bps_high"]


def test_what_is_sure_is_sure_of_the_band_there():
    """Up to the low end the whole band of the efficiency is above the bound, beyond the high end below it."""
    row = compare(["resnet50@recorded"], ["p3.16xlarge"], nodes=(4,)).rows[0]
    found = Search(row, None).nodes(0.7)

    def band(count):
        return efficiency_of(predict(Job(load_workload("resnet50"), MACHINE, nodes=count)))

    assert found.low is not None
    assert found.high is not None
    assert band(int(found.low))[1] >= 0.7 - 0.02
    assert band(2 * int(found.high))[2] < 0.7
    assert band(int(found.value))[0] >= 0.7 - 0.005


def test_times_of_a_placement_are_of_the_step_and_savings_of_the_micro_batch():
    options = Options(accumulate=2)
    found = compare(["mlp"], ["p3.16xlarge"], nodes=(2,), options=options, advice=True)
    apart = found.document()["placement"][0]
    assert apart["one_node_step_s"] == 2 * apart["one_node_s"]
    shown = text(found, 0.8)
    assert f"{format_time(apart['one_node_step_s'])} a step on one node" in shown
    plain = text(compare(["mlp"], ["p3.16xlarge"], nodes=(2,), advice=True), 0.8)
    assert "accumulating gradients (no_sync) over 2 micro-batches a step saves" in plain


def test_one_node_has_no_rate_and_a_bound_is_a_share():
    row = compare(["resnet50@recorded"], ["p3.16xlarge"], nodes=(1,)).rows[0]
    assert list(Search(row, None).rates()) == []
    for wrong in (0.0, 1.0):
        with pytest.raises(InputError, match="no bound of an efficiency"):
            check_bound(wrong)
