import pytest

from ddpsim.common.errors import InputError, WorkloadError
from ddpsim.workload.anchors import Anchor, RooflineFactors, check_floor, pace_of, parse_anchor

WORKS, HOST = (0.02, 0.06, 0.02), 0.05


def pace(*anchors, keep=True, host=HOST):
    return pace_of(WORKS, host, anchors, keep_optimizer=keep, place="net")


def test_a_step_is_met_and_a_named_optimizer_keeps_its_time():
    kept = pace(Anchor("step", 0.26))
    assert kept.phases == pytest.approx((3, 3, 1))
    assert kept.scale == pytest.approx(2.6)
    assert pace(Anchor("step", 0.26), keep=False).phases == pytest.approx((2.6, 2.6, 2.6))


def test_a_phase_gives_its_pace_to_the_rest_unless_the_step_is_known_too():
    assert pace(Anchor("backward", 0.12)).phases == pytest.approx((2, 2, 1))
    assert pace(Anchor("backward", 0.12), Anchor("step", 0.15)).phases == pytest.approx((0.5, 2, 1))
    assert pace(Anchor("optimizer", 0.01), Anchor("step", 0.09)).phases == pytest.approx((1, 1, 0.5))


def test_a_host_bound_step_is_met_by_the_host():
    bound = pace(Anchor("step", 0.11), host=0.12)
    assert bound.host == pytest.approx(0.11 / 0.12)
    assert bound.phases == (1, 1, 1)
    # Longer than host and device are: the device's.
    long = pace(Anchor("step", 0.26), host=0.12)
    assert long.host == 1
    assert long.phases == pytest.approx((3, 3, 1))
    # A faster host than the prior is needed where the device alone would meet the time.
    assert pace(Anchor("step", 0.11), host=0.1).host == 1
    assert pace(Anchor("step", 0.05), host=0.1).host == pytest.approx(0.5)


def test_a_step_that_repeats_as_devices_do_is_met_by_the_device():
    for repeats, host, phases in ((0.02, 0.11 / 0.12, (1, 1, 1)), (0.001, 0.11 / 0.12, (1.125, 1.125, 1))):
        found = pace(Anchor("step", 0.11, repeats=repeats), host=0.12)
        assert found.host == pytest.approx(host)
        assert found.phases == pytest.approx(phases)


def test_what_contradicts_is_refused():
    with pytest.raises(WorkloadError, match="leaves nothing"):
        pace(Anchor("backward", 0.2), Anchor("step", 0.15))
    with pytest.raises(WorkloadError, match="twice"):
        pace(Anchor("step", 0.2), Anchor("step", 0.15))
    with pytest.raises(WorkloadError, match=r"net: 10 ms is below the roofline's floor of 20 ms for the step"):
        check_floor([Anchor("step", 0.01)], (0.005, 0.01, 0.005), "net")
    for text in ("12", "0ms", "sideways=3ms", "backward=", "-1ms"):
        with pytest.raises(InputError, match="--one-gpu-step"):
            parse_anchor(text, "--one-gpu-step")
    for text in ("20ms±", "20ms±3", "20ms±120%", "backward=80ms±1%", "20ms±-1%"):
        with pytest.raises(InputError, match="--one-gpu-step"):
            parse_anchor(text, "--one-gpu-step")
    assert parse_anchor("backward=80ms", "x").phase == "backward"
    for text in ("20.94ms±0.1%", "20.94ms+-0.1%"):
        assert parse_anchor(text, "x") == Anchor("step", 0.02094, repeats=pytest.approx(0.001))


def test_the_pace_of_a_distributed_row_is_carried_and_of_no_anchor_refused():
    plain = {"pace": RooflineFactors().document(), "scale": 1.0, "scaled_to": None}
    with pytest.raises(WorkloadError, match=r"w.json: no estimate that was scaled to a measured step; make one with"):
        RooflineFactors.of(plain, "w.json")
    row = plain | {"scaled_to": "140 ms on dgx-a100, 8 ranks: given by the user", "row_scale": 2.5}
    assert RooflineFactors.of(row, "w.json") == RooflineFactors((2.5, 2.5, 1.0), 1.0, 2.5)
    taken = RooflineFactors((3.0, 2.0, 1.0), 0.9, 2.2)
    assert RooflineFactors.of(plain | {"pace": taken.document()}, "w.json") == taken
    assert RooflineFactors.of({"scaled_to": "a page", "scale": 1.04}, "w.json") == RooflineFactors(
        (1.04, 1.04, 1.0), 1.0, 1.04
    )
