"""Help that says what an option does, of the command and the direction that it is for."""

from __future__ import annotations

import re

import pytest

from ddpsim.cli.app import whole_command
from ddpsim.cli.flags import find_command
from ddpsim.common.options.option import Section, list_declared
from ddpsim.simulation.jobs.job_options import JobOptions
from ddpsim.simulation.jobs.simulated import Options


def test_what_a_switch_is_and_what_switches_it_off_are_two_lines() -> None:
    buffers = next(each for each in list_declared(JobOptions) if each.field == "broadcast_buffers")
    assert buffers.option.help.startswith("Broadcast ")
    assert buffers.help.startswith("Do not broadcast ")


@pytest.mark.parametrize("name", ["predict", "plan", "compare", "sweep", "workload anchor"])
def test_every_option_of_a_long_help_stands_once_in_a_section_of_its_own(name: str) -> None:
    command = find_command(whole_command(), name.split())
    text = command.get_help(command.make_context(name, [], resilient_parsing=True))
    head, _, options = text.partition("\nJob:\n")
    assert "Options:" not in head
    assert (
        re.findall(r"^([A-Z].*):$", options, re.MULTILINE) == [each for each in Section if f"\n{each}:\n" in text][1:]
    )
    for param in command.params:
        if param.param_type_name == "argument":
            assert "\nArguments:\n  W " in head
        else:
            assert len(re.findall(rf"^  (?:-\w, )?{param.opts[0]}(?=[ ,]|$)", options, re.MULTILINE)) == 1


def test_an_option_stands_in_the_section_that_its_declaration_names() -> None:
    params = {param.name: param for param in find_command(whole_command(), ["predict"]).params}
    for each in list_declared(Options):
        assert each.section is not None, each.field
        if each.field in params:
            assert params[each.field].rich_help_panel == each.section
    assert params["topology"].rich_help_panel == Section.MACHINE
