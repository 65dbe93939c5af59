"""A configuration's options are those of a run: same types, same defaults."""

from pathlib import Path

import pytest

pytest.importorskip("torch")

from ddpexec.lab.campaign.campaign import options
from ddpexec.lab.campaign.spec import CampaignRun, parse_campaign
from ddpexec.lab.campaign.stages import run_arguments
from ddpexec.running.settings import RunSettings
from ddpsim.common.errors import InputError
from ddpsim.common.options.option import list_declared


def test_every_option_of_a_run_is_a_key_with_its_default_but_what_a_campaign_decides() -> None:
    defaults = {each.field: each.default for each in list_declared(RunSettings)}
    asked = CampaignRun(network="flat", model="mlp").options
    assert defaults.keys() - asked.keys() == {
        *("backend", "local_iterations", "observe", "send_rate"),  # decided by the campaign
        *("iterations", "scale_compute"),  # other keys of that name
    }
    assert {name for name, value in asked.items() if value != defaults[name]} == {"implementation"}
    assert asked["implementation"] == "torch"


def test_what_is_given_reaches_the_prediction_and_the_run_as_a_user_would_type_it() -> None:
    text = """
name: c
iterations: 3
networks: {flat: {ranks: 2, rate: 1gbit}}
runs: [{network: flat, workload: mlp, impl: ddpexec, bucket_cap_mb_list: [1, 25.0390625], no_sync_every: 2,
        process_groups: 2, straggler: {1: 1.2345678}, gradient_as_bucket_view: true, broadcast_buffers: false, seed: 7}]
"""
    [configuration] = parse_campaign(text, "c").configurations
    assert configuration.settings().stragglers == {1: 1.2345678}
    made = options(configuration)
    assert (made.process_groups, made.accumulate, made.broadcast_buffers) == (2, 2, False)
    assert made.caps.bucket_cap_mb_list == (1, 25.0390625)
    assert " ".join(run_arguments(configuration, Path("x"))) == (
        "--workload x/workload.json.gz --bucket-cap-mb-list 1,25.0390625 --backend gloo --accumulate 2 "
        "--gradient-as-bucket-view --no-broadcast-buffers --process-groups 2 --straggler 1:1.2345678 "
        "--seed 1007 --iterations 6 --local-iterations 5"
    )


def test_an_option_that_no_campaign_had_reaches_both_too_by_any_of_its_names() -> None:
    text = """
name: c
networks: {flat: {ranks: 2, rate: 1gbit}}
runs: [{network: flat, model: mlp, implementation: ddpexec, compression: fp16, accumulate: 4,
        sync: every, timeout: 90s, drop: {"1": 0.25}, stragglers: ["1:1.5"]}]
"""
    [configuration] = parse_campaign(text, "c").configurations
    made = options(configuration)
    assert (made.compression, made.accumulate, made.sync, made.drop) == ("fp16", 4, "every", {"1": 0.25})
    assert made.stragglers == {1: 1.5}
    said = " ".join(run_arguments(configuration, Path("x")))
    for part in (
        *("--model mlp --threads 1", "--seed 1000"),
        *("--compression fp16", "--accumulate 4", "--sync every", "--timeout 90s", "--drop 1:0.25"),
    ):
        assert part in said
    assert "--local-iterations" not in said, "which layers stay is drawn for synchronised iterations"
    assert configuration.name == (
        "mlp_real-flat-ddpexec-nosync4-slow1x1.5-sync_every-compression_fp16-drop1x0.25-timeout_0_01_30-default"
    )


def test_a_scheme_reaches_the_run_and_the_prediction() -> None:
    text = """
name: c
networks: {flat: {ranks: 2, rate: 1gbit}}
runs:
  - {network: flat, model: mlp, impl: ddpexec, vary: {scheme: [ddp, "priority:1MiB"]}}
  - {network: flat, model: mlp, impl: ddpexec, overlap: off}
"""
    plain, segments, late = parse_campaign(text, "c").configurations
    assert (options(segments).scheme, options(late).overlap) == ("priority:1MiB", "off")
    assert "--scheme priority:1MiB" in " ".join(run_arguments(segments, Path("x")))
    assert "--overlap off" in " ".join(run_arguments(late, Path("x")))
    assert {plain.family, segments.family, late.family} == {plain.name}
    assert [each.scheme for each in (plain, segments, late)] == ["ddp", "priority:1MiB", "ddp, no overlap"]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("scheme: priority", "use `implementation=ddpexec`"),
        ("scheme: prioriti, impl: ddpexec", "did you mean"),
        ("overlap: off, impl: ddpexec, process_groups: 2", "`overlap=off` and `process_groups=2` are both given"),
        ("straggler: {1: 0.5}, impl: ddpexec", r"runs\.0\.stragglers\[1\]: 0\.5 makes no straggler"),
        ("backend: nccl", "unknown key 'backend'"),
        ("drop: [layer.1], impl: ddpexec", "names no layer and probability"),
    ],
)
def test_schemes_that_cannot_run_are_refused(asked: str, said: str) -> None:
    text = f"name: c\nnetworks: {{flat: {{ranks: 2, rate: 1gbit}}}}\nruns: [{{network: flat, model: mlp, {asked}}}]"
    with pytest.raises(InputError, match=said):
        parse_campaign(text, "c")


def test_a_configuration_that_takes_turns_is_another_measurement_and_times_one_process_in_them() -> None:
    text = """
name: c
networks: {flat: {ranks: 2, rate: 1gbit}}
runs: [{network: flat, workload: mlp}, {network: flat, workload: mlp, scheme: fsdp2}]
"""
    plain, sharded = parse_campaign(text, "c").configurations
    turned, still = parse_campaign(text + "interleave: true\n", "c").configurations
    assert turned.fingerprint() != plain.fingerprint()
    assert "--interleave" in run_arguments(turned, Path("f"))
    assert "--local-iterations" not in run_arguments(turned, Path("f"))
    # Under `fully_shard` no iteration is one process's, so that nothing can take turns with one.
    assert still.fingerprint() == sharded.fingerprint()
    assert "--interleave" not in run_arguments(still, Path("f"))
