"""The committed lab campaign covers what it says: shares of wire time, and every factor's values."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from ddpexec.campaign.campaign import check_steps
from ddpexec.campaign.spec import Campaign, load_campaign, parse_campaign

ROOT = Path(__file__).parents[3]
TRACES, PAGE = ROOT / "traces", ROOT / "docs" / "how-to" / "lab.md"


@pytest.fixture(scope="module")
def lab() -> Campaign:
    return load_campaign(TRACES / "lab.yaml")


@pytest.mark.parametrize("name", ["lab", "smoke", "schemes", "table1"])
def test_no_step_is_longer_than_the_file_allows(name: str) -> None:
    check_steps(load_campaign(TRACES / f"{name}.yaml"))


def test_the_campaign_on_the_labs_page_is_one() -> None:
    (text,) = re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(parse_campaign(text, "lab.md").configurations) == 5


def test_every_scheme_that_runs_stands_in_four_configurations() -> None:
    campaign = load_campaign(TRACES / "schemes.yaml")
    counts = Counter(each.scheme for each in campaign.configurations)
    ours = {"ddp", "naive", "flat", "priority", "dear", "zero1", "zero2", "ddp, no overlap"}
    assert set(counts) == ours | {"fsdp2", "hsdp:2"}
    assert min(counts.values()) >= 4
    families: dict[str, set[str]] = {}
    for each in campaign.configurations:
        families.setdefault(each.family, set()).add(each.scheme)
    assert all(schemes == set(counts) for schemes in families.values())


def test_every_system_beside_ddp_stands_in_three_configurations_of_two_and_four_ranks() -> None:
    found: dict[str, list[int]] = {}
    for each in load_campaign(TRACES / "table1.yaml").configurations:
        found.setdefault(each.scheme.partition(":")[0], []).append(each.network.ranks)
    systems = {
        "averaging",
        "slowmo",
        "local-sgd",
        "horovod",
        "multiworker-mirrored",
        "parameter-server",
        "gradientflow",
    }
    assert set(found) == systems | {"ddp", "priority"}
    assert all(len(ranks) >= 3 and set(ranks) == {2, 4} for ranks in found.values())


def test_wire_times_have_equal_shares(lab: Campaign) -> None:
    shares = Counter(each.run.wire_over_backward for each in lab.configurations if each.run.workload)
    assert set(shares) == {0.2, 0.5, 1, 2, 5}
    assert max(shares.values()) - min(shares.values()) <= 2
    assert len(lab.configurations) >= 100


def test_every_value_of_every_factor_stands_there_five_times(lab: Campaign) -> None:
    factors: dict[str, Counter[object]] = {}
    for each in lab.configurations:
        run, network, asked = each.run, each.network, each.settings()
        shape = "slow link" if network.slow else "trunk" if network.trunk else "flat"
        caps = "list" if asked.caps.bucket_cap_mb_list else asked.caps.bucket_cap_mb
        values = {
            "what": _kind(run.workload) if run.workload else "real computation",
            "ranks": network.ranks,
            "delay": network.delay,
            "caps": caps,
            "view": asked.gradient_as_bucket_view,
            "impl": asked.implementation,
            "shape": shape,
            "straggler": bool(asked.stragglers),
            "no_sync": asked.accumulate,
            "groups": asked.process_groups,
        }
        for name, value in values.items():
            factors.setdefault(name, Counter())[value] += 1
    rare = {(name, value): n for name, counts in factors.items() for value, n in counts.items() if n < 5}
    assert not rare
    models = {"resnet50", "resnet152", "bert-base", "gpt2-small", "vgg16", "mlp", "real computation"}
    assert set(factors["what"]) == models
    assert set(factors["ranks"]) == {2, 3, 4, 8}
    assert set(factors["no_sync"]) == {1, 2, 4}
    assert {0, 5e-3} <= set(factors["delay"])


def test_eight_ranks_have_no_small_buckets(lab: Campaign) -> None:
    for each in lab.configurations:
        if each.network.ranks == 8:
            caps = each.settings().caps
            assert min(caps.bucket_cap_mb_list or [caps.bucket_cap_mb or 0]) >= 5


def test_every_model_is_replayed_and_computes_for_real_at_two_ranks(lab: Campaign) -> None:
    computing = {_kind(each.run.model) for each in lab.configurations if each.run.model and each.network.ranks == 2}
    assert computing == {_kind(each.run.workload) for each in lab.configurations if each.run.workload}


def _kind(name: str) -> str:
    """Return the model's name without its sequences' length and what a workload adds."""
    return re.sub(r"-s\d+$", "", name.partition("@")[0])
