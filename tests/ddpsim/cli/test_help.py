"""Help that says what an option does, of the command and the direction that it is for."""

from __future__ import annotations

import inspect
from typing import get_args

from ddpexec.commands.estimate import estimate
from ddpsim.cli.app import whole_command
from ddpsim.cli.flags import called
from ddpsim.jobs.job import Job
from ddpsim.options.option import declared


def test_what_a_switch_is_and_what_switches_it_off_are_two_lines() -> None:
    buffers = next(each for each in declared(Job) if each.field == "broadcast_buffers")
    assert buffers.option.help.startswith("Broadcast ")
    assert buffers.help.startswith("Do not broadcast ")


def test_compiled_says_that_it_is_no_price() -> None:
    command = called(whole_command(), ["predict"])
    [compiled] = [param for param in command.params if param.name == "compiled"]
    assert "not predicted" in compiled.help


def test_accumulate_of_estimate_says_what_it_is_for() -> None:
    info = get_args(inspect.signature(estimate).parameters["accumulate"].annotation)[1]
    assert "--one-gpu-step" in info.help
