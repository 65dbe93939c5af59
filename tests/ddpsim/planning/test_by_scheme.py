"""Schemes side by side: each as `predict` has it, and DDP kept where a gain may be none."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ddpsim import InputError, Options, load_topology, load_workload
from ddpsim.cli.app import run
from ddpsim.cli.plan_text import scheme_text
from ddpsim.planning.by_scheme import SchemeChoice, SchemeReport, SchemeRow, choose
from ddpsim.prediction.predict import predict
from ddpsim.schedules.named import schemes_named
from ddpsim.simulation.job import Job

WORKLOAD = load_workload("gpt2-small@v100-fp32-b8")
SCHEMES = ["ddp", "fsdp2:noreshard,gather=bf16", "hsdp:8"]


@pytest.fixture(scope="module")
def report() -> SchemeReport:
    return choose(WORKLOAD, [load_topology("dgx-1v")], SCHEMES, nodes=[2])


def test_each_row_is_what_predict_says_of_its_scheme(report: SchemeReport) -> None:
    [choice] = report.choices
    assert [row.scheme for row in choice.rows] == SCHEMES
    for row in choice.rows:
        alone = predict(Job(WORKLOAD, load_topology("dgx-1v"), nodes=2, options=Options(scheme=row.scheme)), band=False)
        assert row.prediction.iteration_s == pytest.approx(alone.iteration_s)
        document = row.document()
        assert document["scheme"] == row.scheme
        assert document["memory"] == alone.document()["memory"]
        assert document["gain"] == pytest.approx(1 - alone.iteration_s / choice.rows[0].prediction.iteration_s)


def choice_of(report: SchemeReport, **changes: float) -> SchemeChoice:
    ddp, other, _ = report.choices[0].rows
    fast = replace(
        other.prediction, summary=replace(other.prediction.summary, iteration_s=0.5 * ddp.default.iteration_s)
    )
    return SchemeChoice((ddp, replace(SchemeRow(fast, ddp.default), **changes)))  # type: ignore[arg-type]


def test_ddp_is_kept_where_it_was_not_asked_for_and_nothing_surely_gains(report: SchemeReport) -> None:
    ddp, other, _ = report.choices[0].rows
    alone = SchemeChoice((replace(other, gain_low=-0.01),))
    assert alone.keep_ddp
    assert alone.best.prediction is ddp.prediction
    assert f"keep DDP; {alone.trial}" in scheme_text(SchemeReport((alone,)))
    document = SchemeReport((SchemeChoice((ddp, alone.rows[0])),)).document()
    gain = {"gain": alone.rows[0].gain, "gain_low": -0.01, "gain_high": alone.rows[0].gain_high}
    assert document["best"]["trial"] == {"scheme": other.scheme, "torch": other.prediction.plan.torch, **gain}  # type: ignore[index]
    less = SchemeChoice((ddp, SchemeRow(ddp.prediction, ddp.default, -0.01, 0.02)))
    assert less.trial is None


def test_ddp_is_kept_where_the_gain_does_not_survive_its_band(report: SchemeReport) -> None:
    assert choice_of(report, gain_low=-0.01, gain_high=0.9).keep_ddp
    sure = choice_of(report, gain_low=0.01, gain_high=0.9)
    assert not sure.keep_ddp
    assert sure.best is sure.rows[1]


def test_a_scheme_that_does_not_fit_is_not_advised() -> None:
    large = replace(WORKLOAD, activations_bytes=int(15e9))
    report = choose(large, [load_topology("dgx-1v")], ["ddp", "zero1"], nodes=[2])
    ddp, zero = report.choices[0].rows
    assert (ddp.fits, zero.fits) == (False, None)
    assert report.best is zero


def test_what_may_not_fit_is_no_answer_where_something_surely_fits(report: SchemeReport) -> None:
    ddp, other, _ = report.choices[0].rows
    memory = ddp.prediction.memory
    assert memory is not None
    assert memory.fits
    doubtful = replace(memory, capacity_bytes=int(1.05 * memory.least_bytes))
    assert doubtful.in_doubt
    fast = replace(
        other.prediction, summary=replace(other.prediction.summary, iteration_s=0.5 * ddp.default.iteration_s)
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(fast), "memory", property(lambda self: doubtful if self is fast else memory))
        choice = SchemeChoice((ddp, SchemeRow(fast, ddp.default, 0.1, 0.9)))
        assert choice.keep_ddp
        assert choice.trial is None
        assert "and may not fit" in scheme_text(SchemeReport((choice,)))


def test_lists_of_schemes_are_read_with_their_options() -> None:
    assert schemes_named("ddp,fsdp2:noreshard,gather=bf16,hsdp:8") == SCHEMES
    with pytest.raises(InputError, match="named twice"):
        schemes_named("ddp,ddp")
    with pytest.raises(InputError, match="takes no option 'dpp'"):
        schemes_named("fsdp2:noreshard,dpp")


COMMAND = ["plan", "--workload", WORKLOAD.name, "--topology", "dgx-1v"]


def test_the_document_holds_the_rows_and_the_best(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*COMMAND, "--schemes", "ddp,fsdp2", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [row["scheme"] for row in document["rows"]] == ["ddp", "fsdp2"]
    assert document["best"]["scheme"] in ("ddp", "fsdp2")
    assert sum(row["best"] for row in document["rows"]) == 1
