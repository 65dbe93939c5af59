"""The line to paste beside a prediction, held against stock torch itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from ddpsim.bucketing import BucketCaps, Parameter, unused_plan
from ddpsim.bucketing.caps import NO_CALL
from ddpsim.bucketing.plan import custom_plan
from ddpsim.planning.planner import plan
from ddpsim.prediction.predict import predict
from ddpsim.simulation.job import Job
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.simulation.jobs.torch_line import caps_giving
from ddpsim.topology.spec import load_topology
from tests.ddpexec.groups import ranks
from tests.ddpsim.simulation.builders import named, workload

STOCK = nn.parallel.DistributedDataParallel
LOOPBACK = load_topology("loopback")
COUNT, SIZE = 8, 16
CAPS = BucketCaps(bucket_cap_mb=0.0002)


class Chain(nn.Module):
    """Vectors that are added up last first; `missing(step)` names those that a step leaves out."""

    def __init__(self, missing=lambda step: ()):
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.ones(SIZE)) for _ in range(COUNT))
        self.missing, self.step = missing, 0

    def forward(self, x):
        out = set(self.missing(self.step))
        self.step += 1
        for index in range(COUNT):
            if index not in out:
                x = x * self.weights[index]
        return x


def recorded(*missing):
    """Return a workload of `Chain` with an iteration for each set of missing gradients."""
    source = workload(gradients=COUNT, size=SIZE, iterations=len(missing))
    hooks, ready = source.gradient_hook_s.copy(), source.gradient_ready_s.copy()
    for number, out in enumerate(missing):
        hooks[number, list(out)] = ready[number, list(out)] = np.nan
    parameters = tuple(Parameter(f"weights.{i}", (SIZE,)) for i in range(COUNT))
    return replace(source, parameters=parameters, gradient_hook_s=hooks, gradient_ready_s=ready)


def trained(rank, line, missing, iterations=4):
    """Paste `line`, train, and return the buckets and options that torch then has."""
    ddp = eval(line, {"DistributedDataParallel": STOCK, "model": Chain(missing)})
    for _ in range(iterations):
        ddp(torch.ones(SIZE)).sum().backward()
        ddp.zero_grad()
    index = {id(p): i for i, p in enumerate(ddp.module.parameters())}
    groups = [tuple(index[id(p)] for p in b.parameters()) for b in ddp.reducer._get_zeros_like_grad_buckets()]
    return groups, ddp.gradient_as_bucket_view, ddp.broadcast_buffers


def predicted(source, **options):
    return predict(Job(source, LOOPBACK, gpus_per_node=2, options=Options(**options)))


@pytest.mark.parametrize("missing", [(), (2,), (0, 7), (1, 2, 3)])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"caps": CAPS},
        {"caps": CAPS, "find_unused_parameters": True},
        {"caps": CAPS, "gradient_as_bucket_view": True, "broadcast_buffers": False},
        {"caps": CAPS, "order": "once"},
        {"caps": CAPS, "accumulate": 2, "find_unused_parameters": True},
    ],
)
def test_the_line_gives_stock_torch_what_was_predicted(missing, options):
    found = predicted(recorded(missing), **options)
    line = found.document()["torch"]
    assert ("static_graph=True" in line) == (bool(missing) and not options.get("find_unused_parameters"))
    asked = (bool(options.get("gradient_as_bucket_view")), options.get("broadcast_buffers", True))
    for groups, *given_options in ranks.run(2, trained, line, lambda step: missing):
        assert groups == found.plan.groups()
        assert tuple(given_options) == asked


@pytest.mark.parametrize(
    ("sets", "options"), [([(2,), ()], {}), ([(2,), (3,)], {"caps": CAPS}), ([(2,)], {"accumulate": 2})]
)
def test_where_gradients_come_and_go_stock_torch_raises_and_the_line_says_so(sets, options):
    line = predicted(recorded(*sets), **options).document()["torch"]
    assert line.startswith("# stock torch raises: weights.2 ")
    assert line.endswith("predict with --find-unused-parameters")
    plain = "DistributedDataParallel(model, bucket_cap_mb=0.0002)"
    ended = ranks.outcomes(2, trained, plain, lambda step: sets[step % len(sets)])
    assert all("Expected to have finished reduction in the prior iteration" in outcome.error for outcome in ended)
    searching = predicted(recorded(*sets), **options, find_unused_parameters=True)
    for groups, *_ in ranks.run(2, trained, searching.document()["torch"], lambda step: sets[step % len(sets)]):
        assert groups == searching.plan.groups()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"drop": {"layer3": 0.5}}, "# stock torch has no layer dropping (--drop); run it with ddpexec"),
        ({"order": "never"}, "# stock torch has no --order never; run it with ddpexec"),
        ({"order": "drift"}, "# stock torch has no --order drift; run it with ddpexec"),
        (
            {"order": "once", "consensus": "mean"},
            "# stock torch has no --order once --consensus mean; run it with ddpexec",
        ),
        ({"process_groups": 2}, "# stock torch has no --process-groups 2; run it with ddpexec"),
    ],
)
def test_what_stock_torch_cannot_do_has_no_line(options, said):
    source = named(workload(gradients=COUNT, size=SIZE, iterations=2, jitter=0.1))
    assert predicted(source, caps=CAPS, **options).document()["torch"] == said


def test_what_is_registered_on_the_wrapped_model_is_said_behind_the_call():
    source = workload()
    assert predicted(source, compression="fp16").document()["torch"] == (
        'DistributedDataParallel(model)  # then register_comm_hook(*hook_for("fp16")), of ddpexec.ddp.compression'
    )
    assert predicted(source, comm="noop").document()["torch"].startswith("DistributedDataParallel(model)  # then")


def test_a_given_plan_has_a_line_where_gradients_arrive_in_its_order():
    source = workload(gradients=4, size=SIZE)
    for groups, line in (
        ([(3,), (2, 1, 0)], "DistributedDataParallel(model, bucket_cap_mb_list=[0, 1])"),
        ([(0,), (1, 2, 3)], str(NO_CALL)),
    ):
        given_plan = custom_plan(source.parameters, groups)
        assert given_plan.torch.startswith("DistributedDataParallel")
        assert predicted(source, plan=given_plan).document()["torch"] == line


@pytest.mark.parametrize("options", [{"assignment": "initial"}, {"order": "once", "find_unused_parameters": True}])
def test_buckets_of_another_assignment_have_a_line_where_other_caps_give_them(one_rank, options):
    found = predicted(recorded(()), caps=CAPS, **options)
    groups, *_ = trained(0, found.plan.torch, lambda step: ())
    assert [set(group) for group in groups] == [set(group) for group in found.plan.groups()]


def test_under_find_unused_parameters_a_plan_of_another_order_has_no_line():
    source = workload(gradients=4, size=SIZE)
    mixed = custom_plan(source.parameters, [(0, 3), (1, 2)])
    assert predicted(source, plan=mixed, find_unused_parameters=True).plan.call == NO_CALL


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(1, 300), min_size=1, max_size=40))
def test_under_find_unused_parameters_caps_fill_in_registration_order(sizes):
    parameters = [Parameter(f"p{i}", (size,)) for i, size in enumerate(sizes)]
    asked = unused_plan(parameters, BucketCaps(bucket_cap_mb=0.0005))
    assert caps_giving(asked, parameters, find_unused=True) == BucketCaps(bucket_cap_mb=0.0005)
    caps = caps_giving(custom_plan(parameters, asked.groups()), parameters, find_unused=True)
    assert unused_plan(parameters, caps).groups() == asked.groups()


def test_the_advice_and_the_plan_file_carry_the_same_line():
    source = recorded((2,))
    [row] = plan(source, [LOOPBACK], gpus_per_node=2).rows
    assert "static_graph=True" in row.advice
    assert row.document()["torch"] == row.chosen.plan.document()["torch"] == row.advice
