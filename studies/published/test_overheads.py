"""Halves by name, scores of bands by hand, and what devices differ by, from points that lie on a line."""

from __future__ import annotations

import pytest

from studies.published.devices_fit import fitted
from studies.published.gpu_systems import FITTED, LATER, systems
from studies.published.overheads import Row, constant, constant_of, constants, line, main


def row(measured: float, low: float, high: float, other: tuple[float, float] | None = None) -> Row:
    return Row("s", ("a",), measured, low, high, measured - 0.8, 0.1, 0.3, 0.2, other)


def test_what_judges_is_half_of_what_no_earlier_fit_used() -> None:
    half = {system.name: system.judges for system in systems()}
    assert not any(half[name] for name in FITTED)
    assert all(half[name] for name in LATER)
    fresh = [half[name] for name in sorted(half) if name not in (*FITTED, *LATER)]
    assert fresh == [number % 2 == 1 for number in range(len(fresh))]


def test_a_band_is_charged_its_width_and_ten_times_what_it_misses_by() -> None:
    assert row(1.05, 0.9, 1.1).score(0.9, 1.1) == pytest.approx(0.2)
    assert row(1.15, 0.9, 1.1).score(0.9, 1.1) == pytest.approx(0.2 + 10 * 0.05)
    assert not row(1.15, 0.9, 1.1).inside_either
    assert row(1.15, 0.9, 1.1, (1.1, 1.3)).inside_either
    rows = [row(1 + error, 0.9, 1.1) for error in (-0.04, -0.02, 0.0, 0.01, 0.03, 0.05, 0.2)]
    best = constant(rows)
    scores = [sum(each.score(1 - half, 1 + half) for each in rows) for half in (best, 0.8 * best, 1.2 * best)]
    assert scores[0] == min(scores)
    cells = [cell.strip() for cell in line("s", rows, [], best).split("|")]
    assert cells[9:11] == ["86%", "86%"]


def test_devices_are_fitted_to_what_is_left_beside_one_point_that_lies_apart() -> None:
    points = [(largest, 0.004 + 0.01 * largest) for largest in (0.1, 0.3, 0.5, 0.9)]
    assert fitted([[*points, (0.4, 0.2)]]) == pytest.approx((0.01, 1.004))


def test_constants_that_are_set_take_the_place_of_priors() -> None:
    assert constants({}) is None
    given = constants(dict([constant_of("nccl.ddp.pace_spread=0.001")]))
    assert given is not None
    assert given["nccl.ddp.pace_spread"] == 0.001


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nobody"], "no system nobody; there are a100-pair"),
        (["--set=nccl.ddp.tail=3"], "'nccl.ddp.tail' is no constant"),
        (["--set=nccl.ddp.pace_spread=much"], "'much' is no number"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_predicted(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert said in capsys.readouterr().err


def test_help_predicts_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    assert "--set CONSTANT=VALUE" in capsys.readouterr().out


def test_the_rest_is_fitted_to_a_spread_that_is_given() -> None:
    points = [(largest, 0.004 + 0.01 * largest) for largest in (0.1, 0.3, 0.5, 0.9)]
    assert fitted([points], [0.01]) == pytest.approx((0.01, 1.004))
