"""Steps on AMD's machines: RCCL is what `nccl` means there, and other constants are refused in one message."""

from __future__ import annotations

import pytest

PREDICT = ("predict", "--workload", "resnet50", "--topology")


@pytest.mark.parametrize("backend", [(), ("--backend", "nccl"), ("--backend", "rccl")])
def test_nccl_is_rccl_on_amds_gpus(ddpsim, backend):
    found = ddpsim(*PREDICT, "mi300x-8", *backend, "--json").document
    assert (found["compute_device"], found["world_size"]) == ("MI300X", 8)
    assert found["local_s"] < found["iteration_s"] < 3 * found["local_s"]
    assert any(doubt["name"] == "allreduce over xGMI" for doubt in found["doubts"])


@pytest.mark.parametrize(
    ("machine", "options", "said"),
    [
        ("mi300x-8", ("--set", "nccl.ddp.hook_s=3us"), "is of nccl, the process group is rccl"),
        ("dgx-h100", ("--set", "rccl.ddp.hook_s=3us"), "is of rccl, the process group is nccl"),
        ("dgx-h100", ("--backend", "rccl"), "RCCL needs AMD's GPUs, dgx-h100 has H100"),
        ("mi300x-8", ("--algorithm", "nvls"), "nvls cannot run on mi300x-8"),
    ],
)
def test_what_is_another_vendors_is_one_message(ddpsim, machine, options, said):
    ddpsim(*PREDICT, machine, *options).refused(said)


def test_a_calibration_of_nccl_is_refused_on_amd(ddpsim, tmp_path):
    table, calibration = tmp_path / "table.csv", tmp_path / "nccl.json"
    table.write_text("size_bytes,oop_time_us\n1048576,40\n16777216,200\n268435456,2000\n", encoding="utf-8")
    ddpsim("calibrate", table, "--topology", "dgx-h100", "-o", calibration)
    said = "the calibration is of nccl, the process group is rccl"
    ddpsim(*PREDICT, "mi300x-8", "--calibration", calibration).refused(said)
    ddpsim("allreduce", "--topology", "mi300x-8", "--calibration", calibration).refused(said)


def test_a_table_of_amds_machine_calibrates_rccl(ddpsim, tmp_path):
    table, calibration = tmp_path / "table.csv", tmp_path / "rccl.json"
    table.write_text("size_bytes,oop_time_us\n16777216,150\n268435456,1540\n1073741824,5990\n", encoding="utf-8")
    assert ddpsim("calibrate", table, "--topology", "mi300x-8", "-o", calibration).code == 0
    rows = ddpsim("allreduce", "--topology", "mi300x-8", "--calibration", calibration, "--json").document["rows"]
    [row] = [row for row in rows if row["size_bytes"] == 268435456]
    assert row["time_us"] == pytest.approx(1540, rel=0.05)


def test_a_constant_of_rccl_is_taken(ddpsim):
    plain, slowed = (
        ddpsim(*PREDICT, "mi300x-8", *given, "--json").document["iteration_s"]
        for given in ((), ("--set", "rccl.ddp.compute_slowdown=2"))
    )
    assert slowed > plain


@pytest.mark.parametrize("command", ["sweep", "plan", "compare"])
def test_other_commands_take_amds_machines(ddpsim, command):
    given = ("--bucket-cap-mb", "5,25") if command == "sweep" else ()
    found = ddpsim(command, *PREDICT[1:], "mi300x-8", "--nodes", "1,2", *given, "--json")
    assert found.code == 0, found.err
    assert "mi300x-8" in found.out
