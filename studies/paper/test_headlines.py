"""Headlines: set-ups against the machines and models they name, counted bytes by hand, verdicts of answers made up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from ddpsim.bucketing import Parameter
from ddpsim.common import shipped
from ddpsim.schedules.averaging import OUTER_PASSES
from ddpsim.schedules.chunks import GradientFlow
from ddpsim.schedules.fused import gradientflow
from ddpsim.schedules.setup import SchemeInputs
from studies.paper.figure import Point
from studies.paper.headlines import allocations, chunks, points, reduced, staged
from studies.paper.headlines.figure import FIGURE, HEADLINES
from studies.paper.headlines.headline import Headline, SystemClaim
from studies.paper.headlines.open import OPEN
from studies.paper.headlines.page import page_of

PAGE = Path(__file__).with_name("paper-schemes.md").read_text()


def test_alexnet_is_the_model_it_says() -> None:
    workload = points.step_of("alexnet", "V100", 128, None, "fp32")
    assert sum(parameter.numel for parameter in workload.parameters) == 61_100_840
    torch = pytest.importorskip("torch")
    from studies.paper.alexnet import AlexNet

    with torch.device("meta"):
        named = {name: tuple(each.shape) for name, each in AlexNet().named_parameters()}
    assert {parameter.name: parameter.shape for parameter in workload.parameters} == named


def test_vgg_has_the_bytes_that_texts_count_with() -> None:
    parameters = points.step_of("vgg16", "V100", 32, None, "fp32").parameters
    assert sum(each.size_bytes for each in parameters) == reduced.VGG_BYTES


def test_a_dgx_1v_has_the_links_of_its_file_and_parts_have_those_between_them() -> None:
    file = yaml.safe_load(shipped.path("topology", "dgx-1v").read_text())
    assert sorted(map(tuple, file["node"]["nvlink"]["pairs"])) == sorted(allocations._CUBE_MESH)
    part = yaml.safe_load(allocations.part_of_dgx_1v((0, 3, 4)))["node"]
    assert part["nvlink"]["pairs"] == [[0, 1, 2], [0, 2, 2]]
    assert part["pcie"]["switches"] == [
        {"socket": 0, "gpus": [0]}, {"socket": 0, "gpus": [1]}, {"socket": 1, "gpus": [2]},
    ]  # fmt: skip
    assert "nvlink" not in yaml.safe_load(allocations.part_of_dgx_1v((0, 3, 4), nvlinks=False))["node"]


@pytest.mark.parametrize(
    ("gpus", "closed"), [((0, 1, 2, 3), True), (tuple(range(8)), True), ((0, 3, 4), False), ((0, 1, 3), True)]
)
def test_rings_of_nvlinks_are_told_from_chains(gpus: tuple[int, ...], closed: bool) -> None:
    assert allocations.ring_of_nvlinks(gpus) is closed


def test_pipedream_s_bytes_are_those_counted_by_hand() -> None:
    # 2,469,696 parameters of convolutions; 9,216 floats an image behind them.
    kept = 2 * 14 / 15 * 4 * 2_469_696 + 2 * 64 * 9216 * 4
    assert staged._sent_less("alexnet") == pytest.approx(1 - kept / (2 * 15 / 16 * 4 * 61_100_840))


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 32), (8, 32), (8, 8)])
def test_equal_stages_take_gpipe_s_closed_form(stages: int, micro_batches: int) -> None:
    assert staged._pipeline_s(stages, micro_batches) == pytest.approx(3 * (micro_batches + stages - 1) / stages)


def of_system(system: str) -> list[Headline]:
    return [headline for headline in HEADLINES if headline.system == system]


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, "holds"), (0.87, "holds"), (0.84, "fails"), (1.16, "fails")])
def test_a_verdict_is_that_of_the_figure(factor: float, verdict: str) -> None:
    headline = of_system("Horovod")[0]
    [job] = headline.points
    assert isinstance(job, points.Job)
    alone_s, ranks = 0.5, job.machine.world_size
    iteration_s = alone_s * ranks / (13.7 * factor)
    answer = {
        "iteration_s": iteration_s, "alone_s": alone_s, "exposed_s": 0.01, "samples_per_s": ranks * 64 / iteration_s,
    }  # fmt: skip
    claim = headline.claim({job: answer})
    assert (claim.verdict, claim.simulated) == (verdict, f"{13.7 * factor:.1f} times")


def test_blink_is_judged_beside_pcie_where_no_ring_joins_all() -> None:
    [headline] = of_system("Blink")
    [point] = headline.points
    rows = [{"ring": 1.0, "blink": 0.5, "pcie": None}, {"ring": 1.0, "blink": 0.8, "pcie": 6.4}]
    claim = headline.claim({point: rows})
    assert (claim.verdict, claim.simulated) == (
        "holds",
        "8.0 times where NCCL goes over PCIe, 2.00 beside today's NCCL",
    )


def test_the_page_says_what_the_outer_step_costs_here() -> None:
    [headline] = of_system("SlowMo")
    claim = headline.claim({point: {"iteration_s": 1.0} for point in headline.points})
    assert f"{OUTER_PASSES:g} copies" in claim.why
    assert claim.why in PAGE


@pytest.mark.parametrize("system", ["Horovod", "SlowMo", "PipeDream"])
def test_headlines_of_a_system_are_those_of_the_page(system: str) -> None:
    """Of three systems, in a second; `make check` makes the whole page."""
    for headline in of_system(system):
        claim = headline.claim({point: point.answer() for point in headline.points})
        assert f"{claim.paper}: {claim.verdict}.** Simulated: {claim.simulated}. {claim.why}\n" in PAGE


def test_every_system_of_the_table_has_a_row_with_its_source() -> None:
    systems = {each.system for each in (*HEADLINES, *OPEN)}
    assert systems >= {
        "SlowMo", "PostLocalSGD", "TicTac", "Parallax", "Horovod", "TF MultiWorkerMirrored", "GradientFlow",
        "ByteScheduler", "PACE", "Blink", "BlueConnect", "GPipe", "PipeDream", "Mesh-TensorFlow",
    }  # fmt: skip
    for headline in HEADLINES:
        assert all((headline.source, headline.stated, headline.assumed))
        assert f"Source: {headline.source}." in PAGE
    assert [point for headline in HEADLINES for point in headline.points] == FIGURE.points()


def test_the_page_tells_counts_and_rows() -> None:
    [row] = of_system("GPipe")
    made = row.claim({})
    assert isinstance(made, SystemClaim)
    page = page_of([made, replace(made, number=8, verdict="undecided")])
    assert "Of 2 headlines: 1 hold, 1 undecided." in page
    assert page.count(made.why) == 2


def test_gradientflow_s_messages_are_those_of_its_schedule() -> None:
    elements = 3_000_000
    setup = SchemeInputs(parameters=[Parameter("p", (elements,))], buckets=[(0,)], world_size=2)
    assert chunks._messages(4 * elements) == [message.size_bytes for message in gradientflow(setup, GradientFlow())]


def test_the_consensus_eats_a_gain_where_small_messages_gain_less_than_nothing() -> None:
    headline = next(each for each in of_system("GradientFlow") if "consensus" in each.paper)
    jobs = [point for point in headline.points if isinstance(point, points.Job)]
    sums = [point for point in headline.points if isinstance(point, points.Allreduce)]

    def verdict(byte_s: float) -> str:
        steps: dict[Point, Any] = {point: {"iteration_s": 1.0} for point in jobs}
        return headline.claim(steps | {p: {"seconds": 1e-4 + p.size_bytes * byte_s} for p in sums}).verdict

    # Where bytes cost nothing no model is large enough to gain.
    assert (verdict(1e-9), verdict(0.0)) == ("holds", "fails")


def test_no_verdict_is_a_constant() -> None:
    """Each headline can hold, and can fail: `undecided` ones are listed as open."""
    assert len({headline.number for headline in HEADLINES}) == len(HEADLINES)
    assert all(headline.judge.__code__.co_consts.count("undecided") == 0 for headline in HEADLINES)
    assert all(each.missing for each in OPEN)
