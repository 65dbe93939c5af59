from dataclasses import replace

import numpy as np
import pytest

from ddpsim import Calibration, Options, load_topology, load_workload, plan, sweep
from ddpsim.bucketing import BucketCaps, unused_plan
from ddpsim.bucketing.plan import custom_plan
from ddpsim.cli.plan_text import text
from ddpsim.planning import best_buckets
from ddpsim.planning.best_buckets import TELLING, TriedBuckets, pipeline_plan
from ddpsim.planning.rows import PlanReport, PlanRow
from ddpsim.planning.worth import WORTH_IT, arguments_of, format_gain
from ddpsim.prediction.answers import Answers
from ddpsim.prediction.predict import predict
from ddpsim.simulation.ddp_costs import remove_overlap_costs
from ddpsim.simulation.job import Job
from tests.ddpsim.simulation.builders import workload

LOOPBACK = load_topology("loopback")
ROUNDING = 1e-9
"""Relative: to another order of sums."""


def test_a_plan_is_never_slower_than_the_default_or_any_uniform_cap():
    source = workload(gradients=40, size=500_000, backward=0.1)
    row = plan(source, [LOOPBACK], options=Options(), gpus_per_node=4).rows[0]
    document = row.document()
    assert row.best.iteration_s <= row.default.iteration_s
    assert all(row.best.iteration_s <= seconds * (1 + TELLING) for _, seconds in row.sweep)
    listed = predict(Job(source, LOOPBACK, gpus_per_node=4, options=Options(plan=pipeline_plan(row.default))))
    assert row.best.iteration_s <= listed.iteration_s * (1 + 2 * TELLING)
    again = predict(Job(source, LOOPBACK, gpus_per_node=4, options=Options(plan=row.best.plan)))
    assert again.iteration_s == pytest.approx(row.best.iteration_s)
    assert document["torch"].startswith("DistributedDataParallel(model")
    assert document["gain"] == pytest.approx(1 - document["iteration_s"] / document["default_iteration_s"])


def firm(row):
    """Return `row` as if its gain were out of doubt."""
    return replace(row, best_low=min(row.best_gain[0], 0.01))


@pytest.mark.parametrize(
    ("seconds", "gain_low", "advised"),
    [
        ({25: 0.9930, 40: 0.9887}, 0.001, 40),  # the simpler of the two would gain 0.7 % only
        ({25: 0.9890, 40: 0.9887}, 0.001, 25),
        ({25: 0.9930, 40: 0.9901}, 0.001, None),
        ({25: 0.9930, 40: 0.9899}, 0.001, 40),
        ({25: 0.9800, 40: 0.9780}, 0.0, None),  # the gain may be none at all
        ({25: 0.9930, "list": 0.9740}, 0.001, None),  # a list must beat the best single cap by 2 % of the step
        ({25: 0.9930, "list": 0.9720}, 0.001, "list"),
        ({25: 0.9830, "list": 0.9640}, 0.001, 25),
        ({25: 0.9830, "list": 0.9620}, 0.001, "list"),
    ],
)
def test_the_advice_follows_the_rule_of_one_percent_and_the_band(monkeypatch, seconds, gain_low, advised):
    source = workload(gradients=8)
    big = replace(source, parameters=tuple(replace(p, shape=(4_000_000,)) for p in source.parameters))
    model = predict(Job(big, LOOPBACK, gpus_per_node=2))
    listed = custom_plan(source.parameters, [(7, 6, 5), (4, 3, 2, 1, 0)])

    def seconds_of(caps, plan):
        return seconds.get("list" if plan else caps.bucket_cap_mb, 1.0)

    def taking(options):
        iteration_s = seconds_of(options.caps, options.plan)
        return replace(
            model, run=replace(model.run, options=options), summary=replace(model.summary, iteration_s=iteration_s)
        )

    def tried(run, caps, plan=None, **kept):
        return TriedBuckets(caps, plan, seconds_of(caps, plan))

    class Known(Answers):
        def predict(self, job, **kept):
            return taking(job.options)

    monkeypatch.setattr(best_buckets, "try_buckets", tried)
    monkeypatch.setattr(best_buckets, "gain_band", lambda *_: (gain_low, 0.05))
    monkeypatch.setattr(best_buckets, "pipeline_plan", lambda *_: listed)
    monkeypatch.setattr(best_buckets, "CAPS_MB", (25.0, 40.0))
    row = best_buckets.choose_buckets(Known(), Job(big, LOOPBACK, gpus_per_node=2), taking(Options()))
    assert row.keep_default == (advised is None)
    least_s = min(seconds.values()) if not (advised is None and "list" in seconds) else seconds[25]
    expected = advised is None and 1 - least_s >= WORTH_IT
    assert (row.trial is not None) == expected
    if advised == "list":
        assert row.chosen.options.plan.groups() == listed.groups()
    else:
        assert row.chosen.options.caps.bucket_cap_mb == advised


def test_where_the_default_is_kept_the_text_says_what_the_fastest_tried_would_save():
    [row] = plan(workload(gradients=40, size=500_000, backward=0.1), [LOOPBACK], gpus_per_node=4).rows
    kept = replace(row, best=row.default, fastest_s=0.996 * row.default.iteration_s, trial=None)
    assert row.fastest_s <= min(row.best.iteration_s, *(seconds for _, seconds in row.sweep))
    assert kept.keep_default
    assert kept.gain == 0
    assert "; the best alternative tried shortens the step by 0.4 %:" in text(PlanReport((kept,)))


def test_the_pipeline_plan_covers_every_gradient_in_arrival_order():
    source = workload(gradients=40, size=500_000, backward=0.1)
    default = predict(Job(source, LOOPBACK, gpus_per_node=4))
    found = pipeline_plan(default)
    assert [index for group in found.groups() for index in group] == list(range(39, -1, -1))


@pytest.mark.parametrize("asked", [{"find_unused_parameters": True}, {"assignment": "unused"}])
def test_where_torch_never_rebuilds_the_line_to_paste_says_so_and_gives_the_plan(asked):
    source = workload(gradients=40, size=500_000, backward=0.1)
    row = plan(source, [LOOPBACK], options=Options(**asked), gpus_per_node=4).rows[0]
    assert pipeline_plan(row.default) is None
    assert row.best.options.plan is None
    assert row.best.plan.groups() == unused_plan(source.parameters, row.best.options.caps).groups()
    for found in (row.default, row.best):
        assert found.plan.torch.endswith("find_unused_parameters=True)")
    [swept] = sweep(source, LOOPBACK, nodes=[None], caps=[BucketCaps(bucket_cap_mb=5)], options=Options(**asked))
    assert swept.document()["torch"] == "DistributedDataParallel(model, bucket_cap_mb=5, find_unused_parameters=True)"


def test_the_pipeline_plan_is_of_the_algorithm_asked_for():
    default = predict(Job(load_workload("resnet50@v100-fp32-b32"), load_topology("dgx-1v"), nodes=4))
    forced = replace(default, run=replace(default.run, options=replace(default.options, algorithm="gather-broadcast")))
    assert pipeline_plan(forced).groups() != pipeline_plan(default).groups()


def test_a_gain_that_may_be_none_keeps_the_default():
    kept = Options(keep_pace=True)
    [row] = plan(load_workload("bert-large@a100-amp-b8"), [load_topology("dgx-2")], nodes=[2], options=kept).rows
    gain, low, high = row.best_gain
    assert low <= 0 < 0.01 < gain < high
    assert row.keep_default
    assert (row.gain, row.gain_low, row.gain_high) == (0, 0, 0)
    document = row.document()
    assert document["gain"] == document["gain_low"] == document["gain_high"] == 0
    assert document["trial"] == {"torch": row.best.plan.torch, "gain": gain, "gain_low": low, "gain_high": high}
    expected = format_gain(gain, low, high, "shorter step expected ")
    sentence = f"worth a try: {arguments_of(row.best.plan.torch)}, {expected}"
    for where in (repr(row), row.paste, row.describe()["trial"], PlanReport((row,))._repr_html_()):
        assert sentence in where
    assert row.chosen is row.default
    assert not firm(row).keep_default
    shown = text(PlanReport((row,)))
    assert "exposed" not in shown
    [parts] = [line for line in text(PlanReport((row,)), details=True).splitlines() if "forward" in line]
    assert {"forward", "exposed", "hidden"} <= set(parts.split())
    assert sentence in " ".join(shown.split())
    assert "±" not in shown
    assert f"largest uncertainty on dgx-2 (2 nodes): {row.chosen.doubts[0].name}" in shown


def test_a_row_says_which_part_of_its_gain_hidden_communication_has(monkeypatch):
    [row] = plan(load_workload("bert-large"), [load_topology("dgx-a100")], nodes=[1]).rows
    free = remove_overlap_costs("nccl", None)
    ends = [
        predict(Job(p.workload, p.topology, nodes=1, options=p.options, calibration=free))
        for p in (row.default, row.best)
    ]
    without = 1 - ends[1].iteration_s / ends[0].iteration_s
    assert row.gain_from_hidden_comm == pytest.approx(row.best_gain[0] - without, abs=1e-6)
    assert row.gain_from_hidden_comm <= row.best_gain[0] + 1e-12
    assert row.document()["gain_from_hidden_comm"] == row.gain_from_hidden_comm
    monkeypatch.setattr(PlanRow, "keep_default", False)
    rests = "rests on communication slowing computation"
    shown = " ".join(text(PlanReport((row,)), details=True).split())
    assert f"{100 * row.gain_from_hidden_comm:.1f} % {rests}" in shown
    costs_s = {"default": 0.0, "best": 0.1 * row.best.iteration_s}
    more = replace(
        row, **{name: replace(getattr(row, name), hidden_comm_cost_s=cost) for name, cost in costs_s.items()}
    )
    assert more.gain_from_hidden_comm < 0
    would = f"{-100 * more.gain_from_hidden_comm:.1f} % more if communication did not slow computation"
    assert would in " ".join(text(PlanReport((more,)), details=True).split())


def test_what_is_advised_has_the_band_of_its_own_prediction():
    source = workload(gradients=40, size=500_000, backward=0.1)
    row = plan(source, [LOOPBACK], gpus_per_node=4).rows[0]
    alone = predict(Job(source, LOOPBACK, gpus_per_node=4, options=row.chosen.options))
    assert (row.chosen.low_s, row.chosen.high_s) == pytest.approx((alone.low_s, alone.high_s), rel=ROUNDING)
    assert row.chosen.low_s < row.chosen.iteration_s < row.chosen.high_s
    for found, right in zip(row.document()["doubts"], alone.document()["doubts"], strict=True):
        assert (found["name"], found["remedy"]) == (right["name"], right["remedy"])
        assert (found["low_s"], found["high_s"]) == pytest.approx((right["low_s"], right["high_s"]), rel=ROUNDING)


def test_a_workload_without_jitter_has_one_period():
    for device in ("cpu", "V100"):
        source = workload(device=device, buffers=2)
        options = Options(backend="gloo", iterations=12)
        periods = [
            it.iteration_s for it in predict(Job(source, LOOPBACK, gpus_per_node=3, options=options)).trace.iterations
        ]
        assert np.ptp(periods) == pytest.approx(0, abs=1e-12)


def test_a_giant_bucket_is_not_advised_for_nothing():
    source = load_workload("gpt2-small@h100-amp-b8")
    row = plan(source, [load_topology("dgx-h100")], nodes=[8]).rows[0]
    caps = dict(row.sweep)
    chosen = row.best.options.caps.bucket_cap_mb
    assert chosen < max(caps)
    assert caps[chosen] <= min(caps.values()) * (1 + TELLING)


def measured_costs(row):
    """Return the row's priors as a calibration that measured them, to the same values."""
    start = Calibration.priors("nccl")
    return start.with_values({constant.name: constant.value for constant in row.priors}, source="measured")


def test_a_gain_on_a_host_bound_estimate_says_which_priors_it_rests_on():
    source, machine = load_workload("mlp@a100-amp-b64"), load_topology("dgx-a100")
    kept = Options(keep_pace=True)
    [row] = map(firm, plan(source, [machine], nodes=[1], options=kept).rows)
    report = PlanReport((row,))
    assert row.host_bound
    assert row.host_cost_s < row.chosen.iteration_s
    shown = text(report)
    for word in ("host-bound on dgx-a100", "nccl.ddp.launch_s 25 us", "ddpexec microbench", "ddpexec capture"):
        assert word in shown
    assert "nccl.ddp.launch_s" in [prior["name"] for prior in row.document()["priors"]]

    rows = plan(source, [machine], nodes=[1], calibration=measured_costs(row), options=kept).rows
    calibrated = PlanReport(tuple(map(firm, rows)))
    assert calibrated.rows[0].priors == ()
    assert calibrated.rows[0].host_cost_s == pytest.approx(row.host_cost_s)
    assert "nccl.ddp" not in text(calibrated)
    assert "ddpexec capture" in text(calibrated)


def test_the_host_costs_a_device_bound_step_next_to_nothing():
    [row] = plan(load_workload("vgg16"), [load_topology("dgx-1v")], nodes=[2]).rows
    assert abs(row.host_cost_s) < 0.001 * row.chosen.iteration_s
    assert not row.host_bound


def test_compressed_buckets_are_planned_from_caps_alone():
    source = workload(gradients=40, size=500_000, backward=0.1)
    row = plan(source, [LOOPBACK], options=Options(compression="fp16"), gpus_per_node=4).rows[0]
    assert row.best.options.plan is None
    assert row.default.iteration_s < plan(source, [LOOPBACK], gpus_per_node=4).rows[0].default.iteration_s


def test_the_star_stands_where_the_advice_is():
    kept = plan(workload(gradients=10, size=100, backward=1.0), [LOOPBACK], gpus_per_node=2).rows[0]
    assert kept.keep_default
    assert (kept.cap_mb, kept.document()["torch"], kept.document()["gain"]) == (
        25,
        "DistributedDataParallel(model)",
        0.0,
    )
    [row] = map(firm, plan(load_workload("bert-large@a100-amp-b8"), [load_topology("dgx-a100")], nodes=[1]).rows)
    assert dict(row.sweep)[row.cap_mb] == pytest.approx(row.chosen.iteration_s, rel=1e-12)
