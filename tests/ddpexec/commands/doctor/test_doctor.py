from __future__ import annotations

import json
import os
import shlex
import subprocess
from typing import Any
from unittest import mock

import pytest
import torch

from ddpexec.__main__ import main
from ddpexec.commands import torch_findings as torches
from ddpexec.lab import findings as labs
from ddpsim.common.finding import NO, YES, Finding


def proved(proof: str) -> bool:
    """Carry a proof out; Python's in this process, which has torch already."""
    words = shlex.split(proof)
    if words[:2] == ["python", "-c"]:
        exec(words[2], {})
        return True
    return subprocess.run(proof, shell=True, capture_output=True, timeout=60).returncode == 0


def finding(name: str) -> Finding:
    return next(each for each in torches.findings() if each.name == name)


def test_what_is_able_is_proved_by_its_command() -> None:
    found = list(torches.findings())
    assert {each.name for each in found} == {
        "torch on GPUs", "NCCL", "peer to peer", "gloo", "gloo's interface", "fully_shard",
    }  # fmt: skip
    for each in found:
        if each.able == YES and each.name not in ("torch on GPUs", "NCCL", "gloo's interface"):
            assert proved(each.proof), each
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def test_the_interface_is_the_one_that_gloo_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told = "1: lo    inet 127.0.0.1/8 scope host lo\n2: eth0    inet 10.0.0.7/24 scope global eth0\n"
    monkeypatch.setattr(torches.subprocess, "run", lambda *_, **__: mock.Mock(stdout=told))
    for name, able in (("eth0", YES), ("ib0", NO)):
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", name)
        assert finding("gloo's interface").able == able
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    for address, said in (("10.0.0.7", ""), ("127.0.0.1", "other nodes cannot reach that")):
        monkeypatch.setattr(torches.socket, "gethostbyname", lambda _, address=address: address)
        assert finding("gloo's interface").remedy.startswith(said)
        assert bool(finding("gloo's interface").remedy) == bool(said)


def test_a_gloo_group_that_does_not_come_about_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise RuntimeError("[enforce fail at device.cc:83] rv != -1.\nUnable to find address for: ib0")

    monkeypatch.setattr(torches.dist, "init_process_group", refused)
    told = finding("gloo")
    assert told.able == NO
    assert "Unable to find address for: ib0" in told.found
    assert "GLOO_SOCKET_IFNAME" in told.remedy


def test_a_lab_is_told_with_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(labs.support, "list_missing", lambda: ["root (run it with sudo)", "`tc` (install iproute2)"])
    first, *others = labs.findings()
    assert (first.able, first.found) == (NO, "it lacks root (run it with sudo); `tc` (install iproute2)")
    assert [each.name for each in others] == ["real-time priority"]


@pytest.mark.parametrize(("netem", "tun", "able"), [(True, False, YES), (False, True, YES), (False, False, NO)])
def test_delays_need_netem_or_tun(monkeypatch: pytest.MonkeyPatch, netem: bool, tun: bool, able: str) -> None:
    monkeypatch.setattr(labs.support, "list_missing", list)
    monkeypatch.setattr(labs.support, "has_netem", lambda: netem)
    monkeypatch.setattr(labs.support, "has_tun", lambda: tun)
    assert next(each.able for each in labs.findings() if each.name == "lab's delays") == able


def test_priority_is_what_this_process_may_ask_for() -> None:
    told = next(each for each in labs.findings() if each.name == "real-time priority")
    assert (told.able == YES) == proved(told.proof)
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


def test_the_command_prints_a_document_and_exits_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--json"])
    assert ended.value.code == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["findings"]
    assert all(set(each) == {"name", "able", "found", "proof", "remedy"} for each in found)
