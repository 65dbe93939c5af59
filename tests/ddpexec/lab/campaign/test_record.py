"""A campaign's record: what it keeps gives the same numbers as the folder it was made of."""

from __future__ import annotations

import gzip
import json
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest

from ddpexec.lab.campaign import campaign as campaign_module
from ddpexec.lab.campaign import record, stages
from ddpexec.lab.campaign.campaign import find_finished
from ddpexec.lab.campaign.spec import Campaign
from ddpsim.common.errors import InputError
from ddpsim.trace.json import read_trace, write_trace
from ddpsim.trace.metrics import summarise
from ddpsim.trace.records import BucketTimes, Gradient, Iteration, Span, Trace
from tests.ddpexec.lab.campaign.pretended import FILE, PretendedLab, go


@pytest.fixture
def carried_out(campaign: Campaign, lab: PretendedLab, tmp_path: Path) -> Path:
    (tmp_path / "c.yaml").write_text(FILE)
    go(campaign, tmp_path / "out")
    return tmp_path


@pytest.fixture
def packed(carried_out: Path, campaign: Campaign) -> Path:
    """The record of a campaign that was carried out, beside its folder `out`."""
    folder = carried_out / "record"
    assert record.pack(carried_out / "c.yaml", campaign, carried_out / "out", folder) == []
    return folder


def test_unpacked_it_concludes_as_the_campaign_did(packed: Path, campaign: Campaign, lab: PretendedLab) -> None:
    out, again = packed.with_name("out"), packed.with_name("again")
    assert record.unpack(packed, again).configurations == campaign.configurations
    lab.commands = []
    before, (after, failures) = go(campaign, out)[0], go(campaign, again)
    assert (lab.commands, failures) == ([], [])
    for one, other in zip(before, after, strict=True):
        kept, given = (asdict(each) for each in (one, other))
        for key in ("repeats_s", "step_s", "baselines_s", "bucket_errors"):
            assert given.pop(key) == pytest.approx(kept.pop(key), abs=3e-6)
        for errors in (kept, given):
            errors.pop("largest_term")  # of errors that are zero
        assert given == kept
    for each in campaign.configurations:
        own = [folder / "runs" / each.name for folder in (out, again)]
        assert len({(path / "prediction.json").read_bytes() for path in own}) == 1
        network = stages.MeasuredNetwork(again / "networks" / "flat")
        stamp = json.loads((own[1] / "prediction.json").read_text())["campaign"]
        assert campaign_module.inputs_fingerprint(each, network, own[1]) == stamp["inputs_fingerprint"]


def test_a_record_is_small_and_names_no_path_of_a_machine(packed: Path, campaign: Campaign) -> None:
    assert len(list((packed / "workloads").iterdir())) == 1, "both configurations replay one workload"
    for each in campaign.configurations:
        assert (packed / "runs" / f"{each.name}.json.gz").stat().st_size < 8 << 10
    unpacked = packed.with_name("again")
    record.unpack(packed, unpacked)
    assert not any(str(packed.parent) in path.read_text() for path in unpacked.rglob("*.json"))


def test_packing_again_leaves_nothing_of_what_was_there(carried_out: Path, campaign: Campaign) -> None:
    folder = carried_out / "record"
    (folder / "runs").mkdir(parents=True)
    (folder / "runs" / "former.json.gz").write_bytes(b"")
    record.pack(carried_out / "c.yaml", campaign, carried_out / "out", folder)
    assert sorted(path.name for path in (folder / "runs").iterdir()) == sorted(
        f"{each.name}.json.gz" for each in campaign.configurations
    )


def test_a_record_does_not_replace_the_folder_it_is_made_from(carried_out: Path, campaign: Campaign) -> None:
    out = carried_out / "out"
    with pytest.raises(InputError, match="would replace what it is made from; name another folder"):
        record.pack(carried_out / "c.yaml", campaign, out, out / ".." / "out")
    assert all(find_finished(each, out) for each in campaign.configurations)


def test_unpacking_leaves_nothing_of_a_configuration_that_was_there(packed: Path, campaign: Campaign) -> None:
    out = packed.with_name("out")
    own = out / "runs" / campaign.configurations[0].name
    (own / "run7").mkdir()
    record.unpack(packed, out)
    assert not (own / "run7").exists()
    assert not (own / "result.json").exists()


RUN = {"world_size": 2, "backend": "gloo", "provenance": {}}


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("schema", "ddpexec.record/9", "ddpexec.record/9"),
        ("configuration", "../../victim", ""),
        ("configuration", "..", ""),
        ("configuration", ["x"], ""),
        ("workload", "../victim", ""),
        ("workload", "workloads/../../victim", ""),
        ("workload", "workloads/none.json.gz", "none.json.gz: No such file"),
        ("workload", "workloads", "cannot name a file"),
        ("documents", {"../../../victim/x": {}}, ""),
        ("documents", {"/tmp/x": {}}, ""),
        ("documents", "prediction", "'prediction' is not an object"),
        ("runs", [{}], ""),
        ("runs", [RUN | {"iterations": ["x"]}], "runs.0.iterations.0: 'x' is not an object"),
        ("runs", [{"iterations": [{"start_s": 10**400}]}], "runs.0.iterations.0.start_s: an integer of 401 digits"),
    ],
)
def test_a_damaged_record_names_its_file_and_nothing_outside_itself(
    packed: Path, campaign: Campaign, key: str, value: object, words: str
) -> None:
    folder = packed.parent
    again = folder / "deep" / "again"
    record.unpack(packed, again)
    for place in (folder / "victim", folder / "deep" / "victim"):
        place.mkdir()
        (place / "kept.txt").write_text("kept")
    path = packed / "runs" / f"{campaign.configurations[0].name}.json.gz"
    document = json.loads(gzip.decompress(path.read_bytes()))
    path.write_bytes(gzip.compress(json.dumps({**document, key: value}).encode()))
    before = {each: each.read_bytes() for each in folder.rglob("*") if each.is_file()}
    with pytest.raises(InputError, match=rf"{path.name}.*{words}"):
        record.unpack(packed, again)
    assert {each: each.read_bytes() for each in folder.rglob("*") if each.is_file()} == before


def test_a_record_without_networks_is_none(packed: Path) -> None:
    shutil.rmtree(packed / "networks")
    with pytest.raises(InputError, match=r"record: cannot be read: .*networks: No such file"):
        record.unpack(packed, packed.with_name("again"))


def test_a_record_made_of_another_configuration_does_not_count(packed: Path) -> None:
    (packed / "campaign.yaml").write_text(FILE.replace("iterations: 3", "iterations: 4"))
    again = packed.with_name("again")
    changed = record.unpack(packed, again)
    assert [find_finished(each, again) for each in changed.configurations] == [None, None]


def iteration(rank: int, index: int, late_s: float) -> Iteration:
    start_s = 10 + index * 0.5 + rank * 1e-4
    bucket = BucketTimes(
        index=0,
        size_bytes=4096,
        parameters=(1, 0),
        ready_s=start_s + 0.1,
        launched_s=start_s + 0.11,
        started_s=start_s + 0.12 + late_s,
        wire_s=None,
        finished_s=start_s + 0.3,
        written_s=start_s + 0.31,
    )
    return Iteration(
        rank=rank,
        index=index,
        start_s=start_s,
        end_s=start_s + 0.5,
        forward_s=0.05,
        backward_compute_s=0.2,
        exposed_comm_s=0.1,
        buffer_broadcast_s=0.0,
        optimizer_s=0.01,
        buckets=(bucket,),
        gradients=(Gradient(parameter=0, hook_s=start_s, ready_s=start_s),),
    )


def test_a_reduced_trace_has_the_numbers_of_the_whole_one(tmp_path: Path) -> None:
    iterations = [iteration(rank, index, 0.02 * rank + 1e-3 * index) for rank in range(3) for index in range(4)]
    spans = [Span(rank=0, stream="host", name="forward", start_s=10.0, duration_s=0.05)]
    whole = Trace(3, "gloo", iterations, spans, {"local_s": 0.26})
    small = record.reduce_trace(whole)
    assert sum(len(it.buckets) for it in small.iterations) == 4
    assert not any(it.gradients for it in small.iterations)
    assert small.iterations[0].start_s == 0
    kept, given = summarise(whole).document(), summarise(small).document()
    theirs, ours = (document.pop("buckets")[0] for document in (kept, given))  # type: ignore[index]
    assert ours.pop("parameters") == theirs.pop("parameters")
    assert ours == pytest.approx(theirs, abs=2e-6)
    assert given == pytest.approx(kept, abs=4e-6)
    write_trace(small, tmp_path)
    assert list(read_trace(tmp_path).iterations) == list(small.iterations)
