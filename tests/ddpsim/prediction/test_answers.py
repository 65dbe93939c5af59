"""Many answers: each computed once, kept under its key, and put together the same whoever computed it."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ddpsim import BucketCaps, InputError, Job, Options, compare, load_topology, plan, predict, sweep
from ddpsim.cli.app import run
from ddpsim.common.stopping import Stopped
from ddpsim.common.workers.journal import Journal, code_digest, open_journal
from ddpsim.common.workers.requests import Workers
from ddpsim.prediction import answers as engine
from ddpsim.prediction.answers import Answers, Rows
from ddpsim.prediction.models import Model
from ddpsim.simulation.job import Keys

MACHINE = load_topology("dgx-1v")
MODEL = Model.of("mlp").on(MACHINE)
JOBS = [Job(MODEL, MACHINE, nodes) for nodes in (1, 2, 1, 4)]


@pytest.fixture
def predicted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int | None, bool]]:
    """The node counts of the jobs that this process predicts, and whether they have torch's buckets."""
    found: list[tuple[int | None, bool]] = []
    whole, buckets = engine.predict, engine.predict_buckets

    def counted(job: Job, **given: Any) -> Any:
        found.append((job.nodes, job.options.caps == BucketCaps() and job.options.plan is None))
        return whole(job, **given)

    def counted_too(made: Any, caps: Any, plan: Any, progress: Any) -> Any:
        found.append((made.nodes, caps == BucketCaps() and plan is None))
        return buckets(made, caps, plan, progress)

    monkeypatch.setattr(engine, "predict", counted)
    monkeypatch.setattr(engine, "predict_buckets", counted_too)
    return found


def test_jobs_are_predicted_once_each_and_in_order(predicted: list[tuple[int | None, bool]]) -> None:
    found = predict(JOBS)
    assert predicted == [(1, True), (2, True), (4, True)]
    assert [each.nodes for each in found] == [1, 2, 1, 4]
    assert found == [predict(job) for job in JOBS]
    assert [each.ends for each in found] == [predict(job).ends for job in JOBS]


def test_whoever_computes_and_whatever_is_kept_the_predictions_are_the_same(tmp_path: Path) -> None:
    here, kept = predict(JOBS), tmp_path / "kept"
    with ThreadPoolExecutor(2) as threads:
        assert predict(JOBS, executor=threads, cache=kept) == here
    with Workers(workers=2).crew(4) as crew:
        assert predict(JOBS, executor=crew) == here
    assert predict(JOBS, cache=kept) == here
    lines = kept.read_text().splitlines()
    assert {json.loads(line)["point"] for line in lines} == {f"{code_digest()}{job.key()}" for job in JOBS}
    assert len(lines) == 3


def test_names_are_taken_and_what_is_of_one_job_is_refused() -> None:
    [found] = predict([Job("mlp", "dgx-1v", nodes=2)])  # type: ignore[arg-type]
    assert found == predict("mlp", "dgx-1v", nodes=2)  # type: ignore[arg-type]
    assert predict([]) == []
    [short] = predict(JOBS[:1], band=False)
    assert short == predict(JOBS[0], band=False)
    with pytest.raises(InputError, match="and more of a job beside it"):
        predict(JOBS, nodes=2)  # type: ignore[call-overload]
    with pytest.raises(InputError, match="one prediction has no `executor`"):
        predict("mlp", MACHINE, cache="kept")  # type: ignore[call-overload]
    with pytest.raises(InputError, match="executor: a `int` is no executor"):
        predict(JOBS[:1], executor=2)  # type: ignore[call-overload]
    with pytest.raises(InputError, match="'mlp' is no job"):
        predict([JOBS[0], "mlp"])  # type: ignore[list-item]


def test_an_interrupted_comparison_computes_what_was_missing_and_a_plan_after_it_only_caps(
    tmp_path: Path, predicted: list[tuple[int | None, bool]]
) -> None:
    kept, nodes = tmp_path / "kept", list(range(1, 41))
    stop_at = 25

    def stopping(done: int, total: int) -> None:
        assert total == 40
        if done == stop_at:
            raise Stopped(2)

    with pytest.raises(Stopped):
        compare(["mlp"], ["dgx-1v"], nodes=nodes, cache=kept, progress=stopping)
    assert predicted == [(count, True) for count in nodes[:stop_at]]
    predicted.clear()
    found = compare(["mlp"], ["dgx-1v"], nodes=nodes, cache=kept)
    assert predicted == [(count, True) for count in nodes[stop_at:]]
    predicted.clear()
    assert compare(["mlp"], ["dgx-1v"], nodes=nodes, cache=kept).document() == found.document()
    assert predicted == []

    planned = plan("mlp", ["dgx-1v"], nodes=nodes[:3], cache=kept)  # type: ignore[list-item]
    assert predicted
    assert not any(default for _, default in predicted)
    assert planned.document() == plan("mlp", ["dgx-1v"], nodes=nodes[:3]).document()  # type: ignore[list-item]
    predicted.clear()
    swept = sweep("mlp", "dgx-1v", nodes=nodes[:3], caps=[BucketCaps()], cache=kept)  # type: ignore[arg-type]
    assert [each.iteration_s for each in swept] == [row.prediction.iteration_s for row in found.rows[:3]]
    assert predicted == []


@pytest.mark.parametrize("command", ["compare", "sweep", "plan", "plan --schemes ddp,fsdp2", "plan --search"])
def test_a_command_with_a_cache_computes_nothing_twice(
    command: str, tmp_path: Path, predicted: list[tuple[int | None, bool]], capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*command.split(), "--workload", "mlp", "--topology", "dgx-1v", "--nodes", "2", "--workers", "1", "--json"]
    assert run(words) == 0
    plain = capsys.readouterr().out
    for expected in (True, False):
        predicted.clear()
        assert run([*words, "--cache", str(tmp_path / "kept")]) == 0
        assert capsys.readouterr().out == plain
        assert bool(predicted) is expected


Row = Callable[[Answers, int], dict[str, Any]]


def squares(stop_at: int | None, computed: list[int]) -> Row:
    """Return a function of a row of two answers."""

    def square(number: int) -> dict[str, Any]:
        if number == stop_at:
            raise Stopped(2)
        computed.append(number)
        return {"square": number * number}

    def row(answers: Answers, number: int) -> dict[str, Any]:
        found = answers.ask(dict[str, Any], lambda: square(number), number, "square")
        return {**found, "half": answers.ask(float, lambda: found["square"] / 2, number, "half")}

    return row


def test_what_a_stopped_computation_did_is_not_done_again(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    with open_journal(path) as journal:
        rows = Rows(squares(9, []), range(20), journal=journal)
        with pytest.raises(Stopped):
            rows.all()
    assert rows.found == {number: {"square": number**2, "half": number**2 / 2} for number in range(9)}
    computed, shown = list[int](), list[tuple[int, int]]()
    with open_journal(path) as journal:
        again = Rows(
            squares(None, computed), range(20), journal=journal, progress=lambda *given: shown.append(given)
        ).all()
    assert computed == list(range(9, 20))
    assert [row["square"] for row in again] == [number**2 for number in range(20)]
    assert (shown[0], shown[-1]) == ((9, 20), (20, 20))


def test_of_items_that_lack_the_same_answer_one_is_computed() -> None:
    computed = list[int]()
    assert len(Rows(squares(None, computed), [3, 4, 3, 3]).all()) == 4
    assert computed == [3, 4]


def test_an_error_is_raised_in_its_turn(tmp_path: Path) -> None:
    def row(answers: Answers, number: int) -> int:
        if number == 2:
            raise InputError("no such point", place=f"point={number}", remedy="leave it out")
        return answers.ask(int, lambda: number, number)

    rows = Rows(row, range(5))
    with pytest.raises(InputError, match="point=2: no such point"):
        rows.all()
    assert rows.found == {0: 0, 1: 1}


@pytest.mark.parametrize("line", ["[1]", '"a"', '{"square": "x"}', "{", '{"square": 1'])
def test_an_answer_with_a_right_sum_and_wrong_contents_is_computed_anew(tmp_path: Path, line: str) -> None:
    path = tmp_path / "kept"
    point = f"{code_digest()}{Keys().of(3, 'square')}"
    path.write_bytes(b'{"point": "%s", "crc32": %d, ' % (point.encode(), zlib.crc32(line.encode())))
    path.write_bytes(path.read_bytes() + f'"answer": {line}}}\n'.encode())
    computed = list[int]()
    with open_journal(path) as journal:
        assert isinstance(journal, Journal)
        assert len(journal.entries) == 1
        # "x" is of the kind, so that only what is made of it tells.
        assert Rows(squares(None, computed), [3], journal=journal).all() == [{"square": 9, "half": 4.5}]
    assert computed == [3]


def test_options_that_differ_are_other_jobs() -> None:
    other = Job(MODEL, MACHINE, 2, options=Options(caps=BucketCaps(bucket_cap_mb=1)))
    one, two = predict([JOBS[1], other])
    assert one.plan != two.plan
