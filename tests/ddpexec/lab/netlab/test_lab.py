from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ddpexec.lab.netlab import command, probe
from ddpexec.lab.netlab import lab as lab_module
from ddpexec.lab.netlab.command import lab_network
from ddpexec.lab.netlab.lab import build
from ddpsim.common.errors import InputError
from ddpsim.topology.processes import lab_topology
from tests.ddpexec.lab.netlab.processes import namespaces_of, running_in, until

pytestmark = pytest.mark.usefixtures("lab_machine")

MBIT = 1e6 / 8


@pytest.fixture
def held_lab(ddpexec: Callable[..., subprocess.Popen[str]]) -> subprocess.Popen[str]:
    """A lab of two ranks that do nothing."""
    process = ddpexec("netlab", "--ranks", 2, "--rate", "100mbit", "--", "sleep", 60)
    until(lambda: running_in(process.pid) == 2, 30, "a lab with both ranks")
    return process


def test_each_rank_has_torchruns_environment_and_its_own_address(tmp_path: Path) -> None:
    script = 'echo $RANK $LOCAL_RANK $WORLD_SIZE $MASTER_ADDR $GLOO_SOCKET_IFNAME $(hostname -I) > "$0/$RANK"'
    topology = lab_topology(3, 100 * MBIT)
    assert command.run_command(topology, ["sh", "-c", script, str(tmp_path)]) == 0
    for rank in range(3):
        assert (tmp_path / str(rank)).read_text().split() == [
            *(str(rank), "0", "3", "10.77.0.1", "eth0", f"10.77.0.{rank + 1}")
        ]


@pytest.mark.parametrize("shaper", ["kernel", "forwarder"])
def test_hosts_fill_their_links_whatever_congestion_control_the_machine_prefers(shaper: str) -> None:
    read = ["cat", "/proc/sys/net/ipv4/tcp_congestion_control", "/proc/sys/net/ipv4/tcp_slow_start_after_idle"]
    with build(lab_network(lab_topology(2, 100 * MBIT)), shaper) as lab:
        settings = [subprocess.check_output(lab.enter(host, read), text=True).split() for host in range(2)]
    assert settings == [["reno", "0"]] * 2


def test_one_processor_receives_all_packets_of_a_connection() -> None:
    read = ["cat", "/sys/class/net/eth0/queues/rx-0/rps_cpus"]
    with build(lab_network(lab_topology(2, 100 * MBIT)), "kernel") as lab:
        masks = [subprocess.check_output(lab.enter(host, read), text=True).strip() for host in range(2)]
    everyone = (1 << (os.cpu_count() or 1)) - 1
    assert [int(mask.replace(",", ""), 16) for mask in masks] == [everyone] * 2


def test_traffic_stays_inside() -> None:
    with build(lab_network(lab_topology(2, 100 * MBIT))) as lab:
        routes = subprocess.run(lab.enter(0, ["ip", "route"]), capture_output=True, text=True, check=True).stdout
        outside = subprocess.run(["ip", "route", "get", "10.77.0.2"], capture_output=True, text=True, check=False)
    assert [line.split()[0] for line in routes.splitlines()] == ["10.77.0.0/24"]
    assert "eth0" not in routes.replace("dev eth0", "")
    assert lab_module.PREFIX not in outside.stdout


@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit $((RANK * 3))", 3), ("kill -9 $$", 137)])
def test_the_first_failure_is_the_exit_code(script: str, code: int) -> None:
    assert command.run_command(lab_topology(2, 100 * MBIT), ["sh", "-c", script]) == code
    assert namespaces_of(os.getpid()) == []


def test_a_failed_rank_ends_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "GRACE_S", 0.2)
    script = "test $RANK = 0 && exit 7; sleep 100"
    assert command.run_command(lab_topology(2, 100 * MBIT), ["sh", "-c", script]) == 7


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_takes_the_lab_down(held_lab: subprocess.Popen[str], number: signal.Signals) -> None:
    held_lab.send_signal(number)
    assert held_lab.wait(30) == 128 + number
    assert namespaces_of(held_lab.pid) == []
    assert not (lab_module.LOCKS / f"{lab_module.PREFIX}-{held_lab.pid}.lock").exists()


def test_a_second_start_removes_a_dead_labs_leftovers_and_nothing_else(held_lab: subprocess.Popen[str]) -> None:
    foreign = f"{lab_module.PREFIX}x-{os.getpid()}-h0"
    subprocess.run(["ip", "netns", "add", foreign], check=True)
    try:
        assert f"{lab_module.PREFIX}-{held_lab.pid}" not in lab_module.remove_leftovers()
        assert len(namespaces_of(held_lab.pid)) == 3
        held_lab.kill()
        held_lab.wait()
        assert len(namespaces_of(held_lab.pid)) == 3
        assert f"{lab_module.PREFIX}-{held_lab.pid}" in lab_module.remove_leftovers()
        assert namespaces_of(held_lab.pid) == []
        assert foreign in lab_module.namespaces()
    finally:
        subprocess.run(["ip", "netns", "delete", foreign], check=True)


def test_a_network_beyond_the_forwarder_is_refused_with_a_rate_that_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "SECONDS", 0.2)
    with pytest.raises(InputError, match="sustains"), build(lab_network(lab_topology(2, 800_000 * MBIT, 1e-3))):
        pytest.fail("built")
    assert namespaces_of(os.getpid()) == []
