from __future__ import annotations

import pytest

from ddpexec.lab.campaign.spec import load_campaign, network_topology, parse_campaign
from ddpsim.common.errors import InputError

NETWORKS = """
name: small
networks:
  flat: {ranks: 4, rate: 500mbit, delay: 1ms}
  slow: {ranks: 2, rate: 1gbit, slow: {node: 1, rate: 200mbit}}
  ../up: {ranks: 2, rate: 1gbit}
  ..: {ranks: 2, rate: 1gbit}
"""


def campaign(runs: str, head: str = NETWORKS):  # type: ignore[no-untyped-def]
    return parse_campaign(f"{head}\nruns:\n{runs}", "c.yaml")


def test_vary_is_a_product_and_groups_differ_in_caps_alone() -> None:
    each = campaign(
        "- {network: flat, workload: resnet50, wire_over_backward: 0.5, "
        "vary: {bucket_cap_mb: [null, 1, 25], gradient_as_bucket_view: [true, false]}}\n"
        "- {network: flat, workload: resnet50, wire_over_backward: 0.5, bucket_cap_mb_list: [1, 5, 25]}"
    ).configurations
    assert len(each) == len({c.name for c in each}) == 7
    by_group: dict[str, set[str]] = {}
    for configuration in each:
        by_group.setdefault(configuration.group, set()).add(configuration.caps)
    assert by_group == {
        "resnet50-flat-wire0.5-view": {"default", "cap1", "cap25"},
        "resnet50-flat-wire0.5": {"default", "cap1", "cap25", "caps1_5_25"},
    }


def test_a_run_overrides_the_files_iterations_and_repeats() -> None:
    runs = "- {network: flat, workload: mlp}\n- {network: flat, model: mlp, iterations: 5, repeats: 3}"
    first, second = campaign(runs, NETWORKS + "iterations: 9\nrepeats: 2").configurations
    assert (first.iterations, first.repeats, second.iterations, second.repeats) == (9, 2, 5, 3)


def test_fingerprints_tell_configurations_apart_and_the_network_too() -> None:
    one = campaign("- {network: flat, workload: mlp}").configurations[0]
    same = campaign("- {network: flat, workload: mlp, bucket_cap_mb: null}").configurations[0]
    faster = campaign("- {network: flat, workload: mlp}", NETWORKS.replace("500mbit", "600mbit")).configurations[0]
    assert one.fingerprint() == same.fingerprint()
    assert one.fingerprint() != faster.fingerprint()


def test_a_network_is_a_topology_with_its_slow_link() -> None:
    network = campaign("- {network: slow, workload: mlp}").networks["slow"]
    topology = network_topology("slow", network)
    route = topology.place().network_route((0, "nic0"), (1, "nic0"))
    assert [link.bandwidth for link in route] == pytest.approx([125e6, 25e6])
    assert network.narrowest == pytest.approx(25e6)


@pytest.mark.parametrize(
    ("run", "words"),
    [
        ("{network: flat}", ["runs.0", "`workload` and `model`"]),
        ("{network: flat, model: mlp, scale_compute: 2}", ["runs.0", "own pace"]),
        ("{network: flat, workload: a, scale_compute: 2, wire_over_backward: 1}", ["one of `wire_over_backward`"]),
        (
            "{network: flat, workload: a, process_groups: 2}",
            ["runs.0", "`implementation=torch` has no `process_groups=2`", "use `implementation=ddpexec`"],
        ),
        ("{network: flat, workload: a, bucket_cap_mb: -1}", ["runs.0.bucket_cap_mb", "-1"]),
        ("{network: flat, workload: a, bucket_cap_mb_list: []}", ["runs.0", "bucket_cap_mb_list is empty"]),
        ("{network: flat, workload: a, bucket_cap: 3}", ["runs.0.bucket_cap"]),
        ("{network: flta, workload: a}", ["runs.0.network", "'flta'", "flat"]),
        ("{network: flat, workload: a, straggler: {4: 2}}", ["runs.0.straggler", "rank 4 is not in a world of 4"]),
        ("{network: flat, workload: a, vary: {seed: 3}}", ["runs.0.vary", "lists"]),
        ("{network: flat, workload: a, seed: 1, vary: {seed: [3]}}", ["seed is given and varied"]),
        ("{network: flat, workload: a, vary: {seed: [3, 3]}}", ["twice"]),
        ("{network: flat, model: ../../victim}", ["runs.0", "'../../victim_real-flat-default' cannot name a file"]),
        ("{network: ../up, workload: a}", ["runs.0", "'a-../up-default' cannot name a file", "without a path"]),
        ("{network: .., workload: a}", ["runs.0", "'..' cannot name a file"]),
        (f"{{network: flat, workload: {'a' * 300}}}", ["runs.0", "aaa...' cannot name a file"]),
        (f"{{network: flat, workload: a, seed: 1{'0' * 400}}}", ["runs.0.seed", "401 digits"]),
        (f"{{network: flat, workload: a, vary: {{seed: {[*range(200)]}, repeats: {[1] * 200}}}}}", ["40000 runs"]),
    ],
)
def test_a_bad_run_is_told_with_its_place(run: str, words: list[str]) -> None:
    with pytest.raises(InputError) as told:
        campaign(f"- {run}")
    for word in ["c.yaml", *words]:
        assert word in str(told.value)


def test_all_errors_come_at_once() -> None:
    with pytest.raises(InputError) as told:
        campaign("- {network: flat}\n- {network: flta, workload: a}\n- {network: flat, workload: a, iterations: 0}")
    assert all(f"runs.{number}" in str(told.value) for number in range(3))
    with pytest.raises(InputError) as told:
        campaign("- {network: a, workload: b}", "name: x\nnetworks: {a: {ranks: 1, rate: 500}}")
    assert "networks.a.ranks" in str(told.value)
    assert "networks.a.rate" in str(told.value)


def test_a_missing_file_is_named_with_what_to_give() -> None:
    with pytest.raises(InputError, match=r"^none\.yaml: cannot be read: No such file or directory; give a campaign's"):
        load_campaign("none.yaml")
