from __future__ import annotations

import json

import pytest
from hypothesis import given

from ddpsim.bucketing import BucketCaps, Parameter, initial_plan, plan_buckets, rebuilt_plan, unused_plan
from ddpsim.bucketing.caps import NO_CALL, TorchCall
from ddpsim.bucketing.plan import custom_plan
from ddpsim.common.errors import PlanError
from ddpsim.planning.plan_file import plan_from
from tests import strategies

MODEL = [Parameter(f"layer{i}.weight", (1 << 16,)) for i in range(4)]
CAPS = BucketCaps(bucket_cap_mb=0.5)


@given(strategies.parameters())
def test_a_document_reads_back_as_the_same_plan(parameters):
    for assignment in ("rebuilt", "initial", "unused"):
        plan = plan_buckets(parameters, CAPS, assignment)
        document = json.loads(json.dumps(plan.document()))
        assert plan_from(document, parameters, "plan.json") == plan


@given(strategies.groups())
def test_a_custom_plan_has_the_groups_it_was_given(groups):
    parameters = [Parameter(f"p{i}", (3 * i + 1,)) for i in range(sum(map(len, groups)))]
    plan = custom_plan(parameters, groups)
    assert plan.groups() == groups
    assert plan.size_bytes == sum(p.size_bytes for p in parameters)
    assert plan_from(plan.document(), parameters, "plan.json") == plan


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


def test_an_edited_document_is_refused_until_it_leaves_fingerprint_and_call_out():
    document = rebuilt_plan(MODEL, CAPS).document()
    document["buckets"] = [{"parameters": [3, 2, 1]}, {"parameters": [0]}]
    for other in ({}, {"fingerprint": None}):
        with pytest.raises(
            PlanError, match=r"^plan.json: fingerprint: .* is not the fingerprint of these buckets.*leave"
        ):
            plan_from(document | other, MODEL, "plan.json")
    del document["fingerprint"], document["torch"]
    plan = plan_from(document, MODEL, "plan.json")
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
        plan_from(document, MODEL, "plan.json")


GOOD = rebuilt_plan(MODEL, CAPS).document()


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (None, "not a plan file"),
        ([], "not a plan file"),
        ({**GOOD, "schema": "ddpsim.plan/9"}, '"schema": "ddpsim.plan/1"'),
        ({**GOOD, "parameter_names": None}, "parameter_names: None is not a list"),
        ({**GOOD, "parameter_names": ["a"]}, "it has 1 parameters, the model 4"),
        ({**GOOD, "parameter_names": [p.name for p in MODEL[:3]] + [7]}, r"parameter_names\.3: 7 is not a text"),
        ({**GOOD, "buckets": 3}, "plan.json: buckets: 3 is not a list"),
        ({k: v for k, v in GOOD.items() if k != "buckets"}, "plan.json: buckets: the key is missing"),
        ({**GOOD, "buckets": [3]}, "buckets.0: 3 is not an object"),
        ({**GOOD, "buckets": [{"parameters": [0, 1, 2, 3]}, {"parameters": []}]}, r"buckets.1.parameters: \[\] is not"),
        ({**GOOD, "buckets": [{"parameters": [0, 1, 2, 3.0]}]}, "buckets.0.parameters"),
        ({**GOOD, "buckets": [{"parameters": [0, True, 2, 3]}]}, "buckets.0.parameters"),
        ({**GOOD, "buckets": [{"parameters": ["0", 1, 2, 3]}]}, "buckets.0.parameters"),
        ({**GOOD, "buckets": [{**GOOD["buckets"][0], "size_bytes": "4"}]}, "buckets.0.size_bytes: '4' is not a whole"),
    ],
)
def test_a_malformed_document_is_refused_with_its_place(document, message):
    with pytest.raises(PlanError, match=message) as caught:
        plan_from(document, MODEL, "plan.json")
    assert str(caught.value).startswith("plan.json")


@pytest.mark.parametrize(
    "torch",
    [
        7, "x", "", "DistributedDataParallel", "DistributedDataParallel(net)", "FSDP(model)", "# one\nimport os",
        "DistributedDataParallel(model, device_ids=[0])", "DistributedDataParallel(model, bucket_cap_mb=-1)",
        "DistributedDataParallel(model, bucket_cap_mb='25')", "DistributedDataParallel(model, **options)",
        "DistributedDataParallel(model, bucket_cap_mb=__import__('os'))", "DistributedDataParallel(model)\n", "(" * 300,
        "DistributedDataParallel(model, bucket_cap_mb_list=[])", "DistributedDataParallel(model, static_graph=1)",
    ],
)  # fmt: skip
def test_a_line_that_is_no_constructor_call_is_refused(torch):
    with pytest.raises(PlanError, match=r"^plan.json: torch: .* is no call of torch's constructor; expected e.g."):
        plan_from({**GOOD, "torch": torch}, MODEL, "plan.json")


@pytest.mark.parametrize("limit", ["25", -1, 10**400, True, 1.5])
def test_a_limit_that_is_no_number_of_bytes_is_refused(limit):
    buckets = [{**GOOD["buckets"][0], "limit_bytes": limit}, *GOOD["buckets"][1:]]
    with pytest.raises(PlanError, match=r"^plan.json: buckets.0.limit_bytes: .* is not a (whole )?number") as caught:
        plan_from({**GOOD, "buckets": buckets}, MODEL, "plan.json")
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    "torch",
    [
        "# no constructor argument of torch gives these buckets; run them with ddpexec",
        "DistributedDataParallel(model, bucket_cap_mb_list=[1, 2.5], static_graph=True)  # a has no gradient",
        "DistributedDataParallel(model, bucket_cap_mb=25, broadcast_buffers=False)",
    ],
)
def test_a_line_that_a_plan_writes_is_kept(torch):
    assert plan_from({**GOOD, "torch": torch}, MODEL, "plan.json").torch == torch


def test_a_plan_for_two_parameters_of_one_name_is_refused():
    twice = [Parameter("a", (4,)), Parameter("b", (4,)), Parameter("a", (4,))]
    with pytest.raises(PlanError, match="parameter_names: parameters 0 and 2 are both named 'a'"):
        rebuilt_plan(twice, BucketCaps())


def test_a_plan_holds_the_keywords_of_its_call_as_data():
    plan = unused_plan(MODEL, BucketCaps(bucket_cap_mb=2.5))
    assert (plan.call.caps, plan.call.flags) == (BucketCaps(bucket_cap_mb=2.5), (("find_unused_parameters", True),))
    assert TorchCall.parse(plan.torch) == plan.call
    noted = TorchCall(BucketCaps(bucket_cap_mb_list=(1, 25)), (("broadcast_buffers", False),), "then a hook")
    assert TorchCall.parse(str(noted)) == noted
    assert TorchCall.parse(str(NO_CALL)) == NO_CALL
