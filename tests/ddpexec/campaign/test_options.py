"""A configuration's options are those of a run: same types, same defaults."""

from pathlib import Path
from typing import get_args

import pytest

pytest.importorskip("torch")

from ddpexec.campaign.predicting import options
from ddpexec.campaign.schema import RunSpec, options_given
from ddpexec.campaign.spec import parse_campaign
from ddpexec.campaign.stages import run_arguments
from ddpexec.running.settings import RunSettings
from ddpsim.errors import InputError
from ddpsim.options.option import declared

OTHER = {"impl", "iterations", "scale_compute"}
"""A campaign has torch's implementation, its own iterations, and no scale as defaults."""


def test_a_field_of_a_configuration_has_the_default_that_its_option_declares() -> None:
    named = {each.name: each for each in declared(RunSettings)} | {each.field: each for each in declared(RunSettings)}
    shared = [name for name in RunSpec.model_fields if name in named]
    assert len(shared) > 10
    for name in set(shared) - OTHER:
        assert RunSpec.model_fields[name].default == named[name].default, name
    assert get_args(RunSpec.model_fields["impl"].annotation) == named["impl"].choices


def test_what_is_given_reaches_the_run_and_the_prediction() -> None:
    text = """
name: c
networks: {flat: {ranks: 2, rate: 1gbit}}
runs: [{network: flat, model: mlp, batch_size: 3, impl: ddpexec, process_groups: 2, straggler: {1: 1.5},
        bucket_cap_mb_list: [1, 2.5], broadcast_buffers: false, no_sync_every: 2}]
"""
    [configuration] = parse_campaign(text, "c").configurations
    assert options_given(configuration.run, RunSettings)["stragglers"] == {1: 1.5}
    made = options(configuration)
    assert (made.process_groups, made.accumulate, made.broadcast_buffers) == (2, 2, False)
    assert made.caps.bucket_cap_mb_list == (1, 2.5)
    said = " ".join(run_arguments(configuration, Path("x")))
    for part in (
        *("--model mlp --threads 1", "--batch-size 3", "--process-groups 2", "--straggler 1:1.5", "--seed 1000"),
        *("--bucket-cap-mb-list 1,2.5", "--no-broadcast-buffers", "--accumulate 2", "--iterations 24"),
    ):
        assert part in said


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
        ("scheme: priority", "write `impl: ddpexec`"),
        ("scheme: prioriti, impl: ddpexec", "did you mean"),
        ("overlap: off, impl: ddpexec, process_groups: 2", "drop `process_groups`"),
    ],
)
def test_schemes_that_cannot_run_are_refused(asked: str, said: str) -> None:
    text = f"name: c\nnetworks: {{flat: {{ranks: 2, rate: 1gbit}}}}\nruns: [{{network: flat, model: mlp, {asked}}}]"
    with pytest.raises(InputError, match=said):
        parse_campaign(text, "c")
