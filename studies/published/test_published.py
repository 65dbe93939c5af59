"""The published table's reading and fitting."""

import numpy as np
import pytest

from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.conditions import CollectiveOptions
from ddpsim.collectives.execute import Collectives
from ddpsim.topology.spec import parse_topology
from studies.accuracy import aws_post
from studies.published.published import TARGET, Page
from studies.published.published_fit import nonnegative
from studies.published.published_table import GPUS, MODELS, Case, Measured, published
from studies.study import tables


def test_both_columns_bound_a_measured_time() -> None:
    # 217 images/s, cut: between 32/218 and 32/217; 0.147 s, rounded: from 146.5 to 147.5 ms.
    found = Measured.of(0.147, 217)
    assert found.middle - found.half == pytest.approx(32 / 218)
    assert found.middle + found.half == pytest.approx(32 / 217)
    assert found.minus(found).half == pytest.approx(2 * found.half)


def test_the_table_has_every_row_and_its_intervals_are_not_empty() -> None:
    medians, quartiles = published()
    for model in MODELS:
        assert {case.gpus for case in medians if case.model == model} == {0, *GPUS}
        assert all(Case(model, gpus, cap) in quartiles for gpus in GPUS for cap in (1, 25))
    assert all(0 < time.half < 1.5e-3 for time in (*medians.values(), *quartiles.values()))
    assert [case for case, time in quartiles.items() if time.noisy] == [Case("resnet50", 16, 1)]


def test_steps_of_the_page_are_those_of_its_constants() -> None:
    """Two of its rows, as near as four digits of a constant tell; `make check` fits them anew, and makes all."""
    found = list(tables(TARGET.read_text(encoding="utf-8")))
    head = "constant of `nccl.ddp`"
    [fitted] = (each["rows"] for each in found if head in each["rows"][0])
    constants = {}
    for row in fitted:
        value, *unit = row["fitted to both"].split()
        constants[row[head].strip("`")] = float(value) / (1e6 if unit else 1.0)
    page = Page()
    [steps] = (each["rows"] for each in found if each["title"] == "Every case, fitted to both models")
    told = {(row["model"], int(row["GPUs"])): float(row["predicted"]) for row in steps}
    for gpus in (2, 16):
        step_s = page.predictor.seconds(Case(MODELS[0], gpus), constants)
        assert step_s * 1e3 == pytest.approx(told[MODELS[0], gpus], rel=5e-4)


def test_non_negative_least_squares_meets_its_optimality_conditions() -> None:
    random = np.random.default_rng(0)
    for _ in range(50):
        matrix, target = random.normal(size=(9, 4)), random.normal(size=9)
        x = nonnegative(matrix, target)
        gradient = matrix.T @ (matrix @ x - target)
        assert (x >= 0).all()
        assert (gradient >= -1e-9).all()
        assert np.abs(gradient * x).max() < 1e-9


def test_the_size_that_takes_75_ms_on_two_machines_is_bound_by_the_wire() -> None:
    collectives = aws_post.two_machines("ring")
    size = aws_post.size_taking(collectives, aws_post.SEEN_S)
    assert collectives.estimate_s(size) == pytest.approx(aws_post.SEEN_S, rel=1e-6)
    # No more than the full 10 Gbit/s carry in that time, and no less than a third of it.
    bound = aws_post.SEEN_S * 1.25e9 / (2 * 7 / 8)
    assert bound / 3 < size <= bound


RING = """
name: one ring
node:
  gpus: {count: COUNT, model: V100}
  nvlink: {bandwidth: RATE, pairs: [PAIRS]}
  rings: [[ORDER]]
"""


@pytest.mark.parametrize("fidelity", ["flow", "steps", "closed"])
@pytest.mark.parametrize(("ranks", "rate", "expected_s"), [(4, "25GB/s", 1.5e-3), (8, "10GB/s", 4.375e-3)])
def test_a_forced_ring_without_latency_takes_the_posts_times(
    ranks: int, rate: str, expected_s: float, fidelity: str
) -> None:
    pairs = ", ".join(f"[{n}, {(n + 1) % ranks}, 1]" for n in range(ranks))
    order = ", ".join(f"gpu{n}" for n in range(ranks))
    text = RING.replace("COUNT", str(ranks)).replace("RATE", rate).replace("PAIRS", pairs).replace("ORDER", order)
    priors = Calibration.priors("nccl")
    ideal = {name: 1.0 for name in priors.constants if ".efficiency." in name or ".ll_max" in name}
    ideal |= {name: 1e15 for name in priors.constants if ".channel." in name}
    ideal |= {name: 0.0 for name in priors.constants if name.endswith("_s")}
    ring = Collectives(
        None,
        parse_topology(text, "ring.yaml").place(1),
        backend="nccl",
        calibration=priors.with_values(ideal, source="no latency, every byte payload"),
        options=CollectiveOptions(algorithm="ring", fidelity=fidelity),
    )
    assert ring.simulate_s(aws_post.BYTES) == pytest.approx(expected_s, rel=0.01)
