from __future__ import annotations

import json
from ast import literal_eval

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpsim.bucketing import BucketCaps, BucketPlan, Parameter, initial_plan, plan_buckets, rebuilt_plan, unused_plan
from ddpsim.bucketing.plan import custom_plan, without_rebuild
from ddpsim.errors import PlanError
from tests import strategies

MODEL = [Parameter(f"layer{i}.weight", (1 << 16,)) for i in range(4)]
CAPS = BucketCaps(bucket_cap_mb=0.5)


@given(strategies.parameters())
def test_a_document_reads_back_as_the_same_plan(parameters):
    for assignment in ("rebuilt", "initial", "unused"):
        plan = plan_buckets(parameters, CAPS, assignment)
        document = json.loads(json.dumps(plan.document()))
        assert BucketPlan.from_document(document, parameters, "plan.json") == plan


@given(strategies.groups())
def test_a_custom_plan_has_the_groups_it_was_given(groups):
    parameters = [Parameter(f"p{i}", (3 * i + 1,)) for i in range(sum(map(len, groups)))]
    plan = custom_plan(parameters, groups)
    assert plan.groups() == groups
    assert plan.size_bytes == sum(p.size_bytes for p in parameters)
    assert BucketPlan.from_document(plan.document(), parameters, "plan.json") == plan


def test_the_three_assignments():
    assert rebuilt_plan(MODEL, CAPS).groups() == [(3, 2), (1, 0)]
    assert rebuilt_plan(MODEL, CAPS, [0, 2, 1, 3]).groups() == [(0, 2), (1, 3)]
    assert initial_plan(MODEL, CAPS).groups() == [(0, 1, 2, 3)]
    assert unused_plan(MODEL, BucketCaps(bucket_cap_mb=0.75)).groups() == [(3,), (0, 1, 2)]
    assert plan_buckets(MODEL, CAPS, "unused", [0, 2, 1, 3]).groups() == [(2, 3), (0, 1)]


def test_an_unknown_assignment_is_refused_with_the_known_ones():
    with pytest.raises(PlanError, match="'rebuild'; use one of rebuilt, initial, unused"):
        plan_buckets(MODEL, CAPS, "rebuild")


def test_constructor_calls():
    assert rebuilt_plan(MODEL, BucketCaps()).torch == "DistributedDataParallel(model)"
    assert rebuilt_plan(MODEL, CAPS).torch == "DistributedDataParallel(model, bucket_cap_mb=0.5)"
    unused = unused_plan(MODEL, BucketCaps(bucket_cap_mb_list=(1, 25)))
    assert unused.torch == "DistributedDataParallel(model, bucket_cap_mb_list=[1, 25], find_unused_parameters=True)"
    impossible = custom_plan([*MODEL, Parameter("half", (9,), "float16")], [(0, 4), (1, 2, 3)])
    assert impossible.torch.startswith("# ")


@given(st.lists(st.integers(1, 300), min_size=1, max_size=40))
def test_under_find_unused_parameters_the_call_fills_in_registration_order(sizes):
    parameters = [Parameter(f"p{i}", (size,)) for i, size in enumerate(sizes)]
    asked = unused_plan(parameters, BucketCaps(bucket_cap_mb=0.0005))
    assert without_rebuild(asked, parameters) == asked
    found = without_rebuild(custom_plan(parameters, asked.groups()), parameters)
    assert found.groups() == asked.groups()
    assert found.torch.endswith("find_unused_parameters=True)")
    caps = literal_eval(found.torch.partition("bucket_cap_mb_list=")[2].partition(", find_unused")[0])
    assert unused_plan(parameters, BucketCaps(bucket_cap_mb_list=tuple(caps))).groups() == asked.groups()


def test_what_no_registration_order_fills_has_no_call_under_find_unused_parameters():
    rebuilt = rebuilt_plan(MODEL, CAPS)
    assert without_rebuild(rebuilt, MODEL).groups() == rebuilt.groups()
    assert without_rebuild(rebuilt, MODEL).torch.startswith("# no constructor argument")


def test_fingerprints_tell_plans_apart():
    plans = [
        custom_plan(MODEL, [(0, 1), (2, 3)]),
        custom_plan(MODEL, [(2, 3), (0, 1)]),
        custom_plan(MODEL, [(1, 0), (2, 3)]),
        custom_plan(MODEL, [(0, 1, 2), (3,)]),
        custom_plan([Parameter(f"other{i}", (1 << 16,)) for i in range(4)], [(0, 1), (2, 3)]),
    ]
    assert len({plan.fingerprint() for plan in plans}) == len(plans)
    assert plans[0].fingerprint() == rebuilt_plan(MODEL, CAPS, range(4)).fingerprint()


def test_an_edited_document_gets_a_constructor_call_of_its_own():
    document = rebuilt_plan(MODEL, CAPS).document()
    document["buckets"] = [{"parameters": [3, 2, 1]}, {"parameters": [0]}]
    plan = BucketPlan.from_document(document, MODEL, "plan.json")
    assert plan.torch == "DistributedDataParallel(model, bucket_cap_mb_list=[0.7])"
    assert [b.size_bytes for b in plan.buckets] == [3 << 18, 1 << 18]


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([(0, 1), (2,)], r"1 parameters are in no bucket: 3 \(layer3.weight\); put each parameter in exactly one"),
        ([(0, 1), (1, 2, 3)], r"buckets.1.parameters: parameter 1 \(layer1.weight\) is in buckets 0 and 1; put each"),
        ([(0, 1, 1), (2, 3)], r"parameter 1 \(layer1.weight\) is in bucket 0 twice"),
        ([(0, 1, 4), (2, 3)], "parameter 4 does not exist; the model has 4; give indices from 0 to 3"),
        ([(0, 1, -1), (2, 3)], "parameter -1 does not exist"),
        ([], "4 parameters are in no bucket"),
    ],
)
def test_a_plan_that_misses_or_repeats_a_parameter(groups, message):
    with pytest.raises(PlanError, match=message):
        custom_plan(MODEL, groups)
    document = {**rebuilt_plan(MODEL, CAPS).document(), "buckets": [{"parameters": list(g)} for g in groups]}
    with pytest.raises(PlanError, match=f"^plan.json: .*{message}"):
        BucketPlan.from_document(document, MODEL, "plan.json")


GOOD = rebuilt_plan(MODEL, CAPS).document()


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (None, "not a plan file"),
        ([], "not a plan file"),
        ({**GOOD, "schema": "ddpsim.plan/9"}, '"schema": "ddpsim.plan/1"'),
        ({**GOOD, "parameter_names": None}, "parameter_names: .*another model.* None"),
        ({**GOOD, "parameter_names": ["a"]}, "it has 1 parameters, the model 4"),
        ({**GOOD, "parameter_names": [p.name for p in MODEL[:3]] + [7]}, "its parameter 3 is 7, the model's 'layer3"),
        ({**GOOD, "buckets": 3}, "plan.json: buckets: 3 is not a list"),
        ({k: v for k, v in GOOD.items() if k != "buckets"}, "plan.json: buckets: None is not a list"),
        ({**GOOD, "buckets": [3]}, "buckets.0.parameters: None is not a list of registration indices"),
        ({**GOOD, "buckets": [{"parameters": [0, 1, 2, 3]}, {"parameters": []}]}, r"buckets.1.parameters: \[\] is not"),
        ({**GOOD, "buckets": [{"parameters": [0, 1, 2, 3.0]}]}, "buckets.0.parameters"),
        ({**GOOD, "buckets": [{"parameters": [0, True, 2, 3]}]}, "buckets.0.parameters"),
        ({**GOOD, "buckets": [{"parameters": ["0", 1, 2, 3]}]}, "buckets.0.parameters"),
    ],
)
def test_a_malformed_document_is_refused_with_its_place(document, message):
    with pytest.raises(PlanError, match=message) as caught:
        BucketPlan.from_document(document, MODEL, "plan.json")
    assert str(caught.value).startswith("plan.json")


@pytest.mark.parametrize("torch", [7, None, "x"])
@pytest.mark.parametrize("limit", ["25", -1, 10**400, None, True])
def test_wrong_limits_and_calls_in_a_document_do_no_harm(torch, limit):
    buckets = [{**bucket, "limit_bytes": limit} for bucket in GOOD["buckets"]]
    plan = BucketPlan.from_document({**GOOD, "buckets": buckets, "torch": torch}, MODEL, "plan.json")
    assert plan.groups() == rebuilt_plan(MODEL, CAPS).groups()
    assert all(b.limit_bytes is None or (type(b.limit_bytes) is int and b.limit_bytes < 2**63) for b in plan.buckets)
