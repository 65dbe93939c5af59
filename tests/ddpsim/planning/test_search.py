"""A search beside the simulation of everything it looks over, and what it leaves out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import pytest

from ddpsim import BucketCaps, InputError, Options, load_topology, load_workload
from ddpsim.cli.plan_text import search_text
from ddpsim.common.units import MIB
from ddpsim.planning.best_buckets import CAPS_MB
from ddpsim.planning.candidates import NOT_DIVIDED, NOT_FITTING, NOT_TOGETHER, SLOWER, SearchCandidate, SearchSpace
from ddpsim.planning.quick_step import QuickStep, quick_step
from ddpsim.planning.search import LEADERS, search
from ddpsim.planning.search_report import SearchReport
from ddpsim.planning.worth import NO_GAIN, WORTH_IT, is_advised
from ddpsim.prediction.models import Model
from ddpsim.prediction.predict import predict
from ddpsim.prediction.simulated_run import SimulatedRun
from ddpsim.simulation.job import Job
from ddpsim.simulation.jobs.pipeline import parse_pipeline
from ddpsim.simulation.retiming.retime import SETTLED_EFFECT

SCHEMES = ("ddp", "zero1", "fsdp2")


def _step_s(model: Model, machine: str, nodes: int, candidate: SearchCandidate, caps: BucketCaps) -> float:
    topology, options = load_topology(machine), candidate.options(Options(caps=caps))
    workload = model.on(topology, candidate.micro_batch_size, options=options)
    found = predict(Job(workload, topology, nodes=nodes, options=options), local_s=1.0, band=False)
    return candidate.accumulate * found.iteration_s


@pytest.mark.parametrize(
    ("name", "machine", "ranks", "batches"),
    [
        ("gpt2-small", "dgx-a100", (1,), (2, 8)),
        pytest.param("gpt2-small", "p3.16xlarge", (1, 4), (8,), marks=pytest.mark.needs("seconds")),
        ("mlp", "p3.16xlarge", (1,), (16, 64)),
    ],
)
def test_the_best_is_that_of_all_simulated(
    name: str, machine: str, ranks: tuple[int, ...], batches: tuple[int, ...]
) -> None:
    model = Model.of(name)
    space = SearchSpace(schemes=SCHEMES, tensor_parallel=ranks, micro_batch_sizes=batches, pipelines=[None])
    found = search(model, load_topology(machine), nodes=2, space=space)
    every = {}
    for scheme, together, batch in product(SCHEMES, ranks, batches):
        times = model.source.batch_size * together // batch
        candidate = SearchCandidate(scheme=scheme, tensor_parallel=together, micro_batch_size=batch, accumulate=times)
        size_mb = model.source.gradient_bytes / together / MIB
        caps = [None, *(cap for cap in CAPS_MB if cap < size_mb and scheme != "fsdp2"), size_mb]
        every[candidate] = min(_step_s(model, machine, 2, candidate, BucketCaps(bucket_cap_mb=cap)) for cap in caps)
    assert found.candidates == len(every)
    assert min(row.plan.best.step_s[0] for row in found.rows) == pytest.approx(min(every.values()), rel=0.01)
    # What was left out, of which most were never simulated, is slower than the slowest of the leaders.
    shown = {row.candidate for row in found.rows}
    last_s = max(row.plan.best.step_s[0] for row in found.rows)
    assert all(step_s > 0.99 * last_s for candidate, step_s in every.items() if candidate not in shown)


@pytest.fixture(scope="module")
def small() -> SearchReport:
    space = SearchSpace(
        schemes=["ddp", "hsdp:4"], tensor_parallel=[1, 2, 8], micro_batch_sizes=[2, 4, 8], pipelines=[None]
    )
    return search("gpt2-small", load_topology("dgx-a100"), nodes=2, space=space)


def test_rows_are_those_of_predict_with_their_bands(small: SearchReport) -> None:
    for row in small.rows:
        chosen, candidate = row.plan.chosen, row.candidate
        asked = candidate.options(Options(caps=chosen.options.caps))
        workload = Model.of("gpt2-small").on(load_topology("dgx-a100"), candidate.micro_batch_size, options=asked)
        node = load_topology("dgx-a100")
        alone = predict(Job(workload, node, nodes=2, options=asked))
        assert chosen.iteration_s == pytest.approx(alone.iteration_s)
        assert (chosen.low_s, chosen.high_s) == pytest.approx((alone.low_s, alone.high_s))
        assert row.step_s[1] < row.step_s[0] < row.step_s[2]
        assert chosen.samples * candidate.accumulate == small.global_batch_size == 16 * 8
    assert [row.step_s[0] for row in small.rows] == sorted(row.step_s[0] for row in small.rows)


def test_plain_ddp_at_torchs_defaults_is_beside_the_leaders(small: SearchReport) -> None:
    alone = predict(Job(Model.of("gpt2-small").on(load_topology("dgx-a100")), load_topology("dgx-a100"), nodes=2))
    assert str(small.plain.candidate) == "ddp, 1 micro-batch of 8"
    assert small.plain.plan.keep_default
    assert small.plain.step_s[0] == pytest.approx(alone.iteration_s, rel=1e-3)
    assert small.gain_of(small.best) == pytest.approx(1 - small.best.step_s[0] / small.plain.step_s[0])
    assert small.document()["search"]["plain_ddp"]["scheme"] == "ddp"  # type: ignore[index]


def test_plain_ddp_that_cannot_be_says_why() -> None:
    space = SearchSpace(
        schemes=["ddp"], tensor_parallel=[4], pipelines=[None], global_batch_size=8, micro_batch_sizes=[2]
    )
    found = search("gpt2-small", load_topology("dgx-a100"), nodes=2, space=space)
    assert "16 data-parallel ranks do not divide 8 samples a step" in str(found.plain)
    assert found.gain_of(found.best) is None


def test_progress_ends_with_all_candidates() -> None:
    told: list[tuple[int, int]] = []
    space = SearchSpace(
        schemes=["ddp", "zero1", "fsdp2"], tensor_parallel=[1], pipelines=[None], micro_batch_sizes=[64]
    )
    search("mlp", load_topology("dgx-1v"), space=space, progress=lambda *done: told.append(done))
    assert told[0] == (0, 3)
    assert told[-1] == (3, 3)
    assert {done for done, _ in told} == {0, 1, 2, 3}


def test_each_candidate_is_shown_or_left_for_a_reason(small: SearchReport) -> None:
    left = {each.reason: each for each in small.ruled_out}
    assert len(small.rows) == LEADERS
    assert small.candidates == len(small.rows) + sum(each.count for each in small.ruled_out) == 2 * 3 + 2 * 3 + 2
    # Of groups of eight a candidate a scheme, whatever its micro-batch; of groups of two all of hsdp.
    assert left[NOT_DIVIDED].count == 2
    assert "8 ranks do not divide the 12 heads of attention" in str(left[NOT_DIVIDED].example)
    assert left[NOT_TOGETHER].count == 3
    assert str(left[NOT_TOGETHER].example).startswith("scheme 'hsdp:4': its ranks cannot be in groups of 2")
    assert left[SLOWER].count == small.candidates - LEADERS - 2 - 3


def test_what_may_not_fit_stands_beside_the_answer_and_is_never_it() -> None:
    space = SearchSpace(schemes=["ddp", "fsdp2"], micro_batch_sizes=[8], tensor_parallel=[1], pipelines=[None])
    node = load_topology("dgx-a100")
    whole = search("gpt2-small", node, nodes=2, space=space)
    ddp = next(row for row in whole.rows if row.candidate.scheme == "ddp")
    assert ddp.plan.chosen.memory is not None
    limit = ddp.plan.chosen.memory.least_bytes + MIB
    found = search("gpt2-small", node, nodes=2, space=space, options=Options(memory_limit_bytes=limit))
    assert ddp.step_s[0] < next(row for row in whole.rows if row.candidate.scheme == "fsdp2").step_s[0]
    assert [row.candidate.scheme for row in found.rows] == ["fsdp2"]
    assert [row.candidate.scheme for row in found.may_not_fit] == ["ddp"]
    assert found.best is found.rows[0]
    document, shown = found.document(), search_text(found)
    assert document["best"]["scheme"] == "fsdp2"  # type: ignore[index]
    assert [row["scheme"] for row in document["may_not_fit"]] == ["ddp"]  # type: ignore[attr-defined]
    less = 100 * (1 - found.may_not_fit[0].step_s[0] / found.best.step_s[0])
    assert f"faster, but may not fit: ddp, 1 micro-batch of 8, {less:.1f} % shorter step than the best" in shown
    assert "best: fsdp2, 1 micro-batch of 8" in shown
    alone = search(
        "gpt2-small", node, nodes=2, space=replace(space, schemes=["ddp"]), options=Options(memory_limit_bytes=limit)
    )
    assert alone.best is None
    assert alone.document()["best"] is None
    assert "best: none is sure to fit" in search_text(alone)


def test_plain_ddp_stays_where_no_leader_surely_gains_and_the_first_of_them_is_a_trial(small: SearchReport) -> None:
    assert not isinstance(small.plain, str)
    gain = small.gain_band_of(small.rows[0])
    assert gain is not None
    assert gain[1] <= gain[0] <= gain[2]
    own = [row for row in small.rows if row.candidate == small.plain.candidate]
    slower = replace(small, rows=tuple(row for row in small.rows if (small.gain_of(row) or 0) < WORTH_IT))
    assert slower.best in (*own, slower.plain)
    assert slower.trial is None
    best = small.best
    assert best is not None
    assert is_advised(small.gain_band_of(best) or NO_GAIN) or best in (*own, small.plain)


def test_a_limit_leaves_out_what_does_not_fit() -> None:
    space = SearchSpace(schemes=SCHEMES, micro_batch_sizes=[8], tensor_parallel=[1], pipelines=[None])
    node = load_topology("dgx-a100")
    whole = search("gpt2-small", node, nodes=2, space=space)
    most = max(row.plan.chosen.memory.least_bytes for row in whole.rows if row.plan.chosen.memory is not None)
    limited = search("gpt2-small", node, nodes=2, space=space, options=Options(memory_limit_bytes=most - MIB))
    assert {row.candidate.scheme for row in (*limited.rows, *limited.may_not_fit)} == {"zero1", "fsdp2"}
    assert limited.document()["search"]["memory_limit_bytes"] == most - MIB  # type: ignore[index]
    [left] = [each for each in limited.ruled_out if each.reason == NOT_FITTING]
    assert left.count == 1
    assert "the least is" in str(left.example)
    assert "of ddp, 1 micro-batch of 8" in str(left.example)
    with pytest.raises(
        InputError, match=r"fits 0.5 GiB of a GPU: the least is \d.\d GiB, of fsdp2, 1 micro-batch of 8"
    ):
        search("gpt2-small", node, nodes=2, space=space, options=Options(memory_limit_bytes=MIB * 512))


@pytest.mark.parametrize("scheme", ["ddp", "zero1", "fsdp2", "zero2"])
@pytest.mark.parametrize("sync", ["last", "every"])
def test_many_micro_batches_are_told_by_four(scheme: str, sync: str) -> None:
    node, asked = load_topology("dgx-a100"), Options(scheme=scheme, accumulate=11, sync=sync)
    workload = Model.of("gpt2-small").on(node, 1, options=asked)
    told = quick_step((Job(workload, node, 2, options=asked), float("inf")), ())
    whole = predict(Job(workload, node, nodes=2, options=asked), local_s=1.0, band=False)
    assert told.step_s == pytest.approx(11 * whole.iteration_s, rel=0.005)


def test_a_recorded_step_keeps_its_batch_and_its_layers() -> None:
    recorded = replace(load_workload("gpt2-small@a100-amp-b8"), estimated=False, operators=None)
    found = search(recorded, load_topology("dgx-a100"), nodes=2, space=SearchSpace(global_batch_size=16 * 16))
    assert {row.candidate.micro_batch_size for row in found.rows} == {8}
    assert {row.candidate.tensor_parallel for row in found.rows} == {1}
    assert {row.candidate.accumulate for row in found.rows} == {2}
    assert found.candidates == 5


def test_what_cannot_be_is_refused() -> None:
    node = load_topology("dgx-a100")
    with pytest.raises(InputError, match="16 data-parallel ranks do not divide 100 samples a step; give a multiple"):
        search(
            "gpt2-small", node, nodes=2, space=SearchSpace(global_batch_size=100, tensor_parallel=[1], pipelines=[None])
        )
    with pytest.raises(InputError, match="micro-batches of 3 do not divide the 8 samples of a data-parallel rank"):
        search(
            "gpt2-small", node, nodes=2, space=SearchSpace(micro_batch_sizes=[3], tensor_parallel=[1], pipelines=[None])
        )
    space = SearchSpace(
        micro_batch_sizes=[1], global_batch_size=129 * 8, tensor_parallel=[1], pipelines=[parse_pipeline("1f1b:2", "p")]
    )
    with pytest.raises(InputError, match="129 micro-batches of 1 are a step, and 128 are simulated at most; give"):
        search("gpt2-small", node, nodes=2, space=space)
    with pytest.raises(InputError, match="some of its ranks do not train"):
        search("mlp", node, nodes=2, space=SearchSpace(schemes=["ddp", "parameter-server"]))
    with pytest.raises(InputError, match="nothing is given"):
        SearchSpace(tensor_parallel=[])


@pytest.mark.parametrize("scheme", ["ddp", "zero2"])
def test_many_micro_batches_are_told_by_a_few(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, machine = Model.of("gpt2-small"), load_topology("dgx-a100")
    options = Options(scheme=scheme, accumulate=24)
    workload = model.on(machine, 4, options=options)
    found = []
    for longest in (128, 8):
        monkeypatch.setattr("ddpsim.prediction.simulated_run.LONGEST", longest)
        found.append(predict(Job(workload, machine, nodes=2, options=options)))
    whole, few = found
    assert len(few.trace.iterations) == len(whole.trace.iterations)
    (step_s, *ends_s), (whole_s, *whole_ends_s) = few.step_s, whole.step_s
    assert step_s == pytest.approx(whole_s, rel=1e-6)
    # Ends are retimed, each until a pass moves it by less than that share of what its doubt changes.
    for end_s, whole_end_s in zip(ends_s, whole_ends_s, strict=True):
        assert end_s == pytest.approx(whole_end_s, abs=SETTLED_EFFECT * abs(whole_end_s - whole_s))
    assert few.local_s == pytest.approx(whole.local_s)
    assert few.summary.exposed_comm_s == pytest.approx(whole.summary.exposed_comm_s, rel=0.01)


def test_a_leader_may_have_any_number_of_micro_batches() -> None:
    space = SearchSpace(schemes=["ddp"], tensor_parallel=[1], pipelines=[None], micro_batch_sizes=[1])
    given = replace(space, global_batch_size=16 * 1024)
    found = search("gpt2-small", load_topology("dgx-a100"), nodes=2, space=given)
    assert found.best.candidate.accumulate == 1024
    assert found.ruled_out == ()


@pytest.mark.parametrize(("text", "batches"), [("1f1b:2", 32), ("gpipe:4", 24), ("interleaved:4", 24)])
def test_a_step_in_stages_is_told_by_fewer_micro_batches(text: str, batches: int) -> None:
    pipeline = parse_pipeline(text, "pipeline")
    candidate = SearchCandidate(
        scheme="ddp", tensor_parallel=1, micro_batch_size=4, accumulate=batches, pipeline=pipeline
    )
    model, machine, options = Model.of("bert-large"), load_topology("dgx-a100"), candidate.options(Options())
    workload = model.on(machine, 4, options=options)
    quick = quick_step((Job(workload, machine, 2, options=options), float("inf")), ())
    whole = predict(Job(workload, machine, nodes=2, options=options), local_s=1.0, band=False)
    assert quick.step_s == pytest.approx(whole.iteration_s, rel=0.01)


def test_of_schemes_with_the_same_messages_one_is_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def watched(item: tuple[Job, float], caps: Sequence[BucketCaps] | None) -> QuickStep:
        asked.append(item[0].options.scheme)
        return quick_step(item, caps)

    monkeypatch.setattr("ddpsim.planning.quick_step.quick_step", watched)
    space = SearchSpace(schemes=["zero2", "zero1"], tensor_parallel=[1], pipelines=[None], micro_batch_sizes=[64])
    found = search("mlp", load_topology("dgx-1v"), space=space)
    assert asked == ["zero1", "ddp"]
    first, second = (row.plan.chosen for row in found.rows)
    assert {first.options.scheme, second.options.scheme} == {"zero1", "zero2"}
    assert first.iteration_s == second.iteration_s


def test_a_search_that_is_kept_simulates_no_candidate_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    space = SearchSpace(schemes=["ddp", "zero3"], tensor_parallel=[1], pipelines=[None], micro_batch_sizes=[8])
    find = partial(search, "gpt2-small", load_topology("dgx-1v"), nodes=2, space=space, cache=tmp_path / "kept")
    found = find()
    monkeypatch.setattr("ddpsim.planning.quick_step.quick_step", lambda *_: pytest.fail("it is simulated again"))
    assert find().document() == found.document()


def test_of_stages_no_cap_is_tried_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = parse_pipeline("1f1b:8", "pipeline")
    candidate = SearchCandidate(scheme="ddp", tensor_parallel=1, micro_batch_size=1, accumulate=2, pipeline=pipeline)
    model, machine, options = Model.of("gpt2-small"), load_topology("p3.16xlarge"), candidate.options(Options())
    tried, with_buckets = [], SimulatedRun.with_buckets

    def watched(run: SimulatedRun, caps: BucketCaps) -> SimulatedRun:
        tried.extend([caps.bucket_cap_mb] if caps.bucket_cap_mb else [])
        return with_buckets(run, caps)

    monkeypatch.setattr(SimulatedRun, "with_buckets", watched)
    quick_step((Job(model.on(machine, 1, options=options), machine, 2, options=options), float("inf")))
    # The largest stage, with the embedding, is of less than 200 MiB, the model of 475.
    assert tried[:4] == [5, 10, 40, 100]
    assert 100 < tried[4] < 200
    assert len(tried) == 5


def test_a_search_looks_over_pipelines() -> None:
    pipelines = [None, parse_pipeline("1f1b:2", "pipeline"), parse_pipeline("1f1b:3", "pipeline")]
    space = SearchSpace(schemes=["ddp"], tensor_parallel=[1], pipelines=pipelines, micro_batch_sizes=[8])
    found = search("bert-large", load_topology("dgx-a100"), nodes=1, space=space)
    assert [str(row.candidate.pipeline) for row in found.rows] == ["None", "1f1b:2"]
    assert [each.reason for each in found.ruled_out] == [NOT_DIVIDED]
    [_, staged] = found.rows
    assert staged.document()["stages"] == "1f1b:2"
    assert staged.document()["data_parallel"] == 4
