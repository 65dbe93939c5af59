"""A record's configurations with two predictions each: the one made before the runs, and what today's code says.

Both are concluded by the same stages on the same recorded runs. Today's fits the constants anew to the recorded
microbenchmarks and needs no network, so that a change of the model shows at once what it does to what was measured.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ddpexec.lab.campaign import campaign as campaign_module
from ddpexec.lab.campaign import stages
from ddpexec.lab.campaign.campaign import is_current
from ddpexec.lab.campaign.record import unpack
from ddpexec.lab.campaign.results import Result
from ddpexec.lab.campaign.spec import Campaign, Configuration
from ddpsim.common.errors import InputError
from ddpsim.common.files import read_json
from ddpsim.trace.json import read_trace
from ddpsim.trace.records import Trace
from ddpsim.workload.files import load_workload

_TIME = "%Y-%m-%dT%H:%M:%SZ"
_REMEDY = "pack the record again"

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Held:
    """One prediction held against the runs.

    Attributes:
        result: the numbers.
        terms: each term's error as a share of the step, signed, in the mean over the runs.
        finishes: of buckets: measured and predicted finish, seconds from the start of forward, likewise.
    """

    result: Result
    terms: dict[str, float]
    finishes: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Recorded:
    """A configuration as the record keeps it: what was predicted, and what was measured.

    Attributes:
        before, now: the prediction written before the runs, and today's code's.
        written_at: when the former was written.
        first_run_at: when the first run began; of runs that do not say so, when its first counted iteration did.
        inputs_agree: the record's workload, topology and constants are those the prediction was made from.
        torch: version that ran.
        late_gradients: mean share of the timed layers' gradients that came late; None for a model that computes.
    """

    configuration: Configuration
    before: Held
    now: Held
    written_at: datetime
    first_run_at: datetime
    inputs_agree: bool
    torch: str
    late_gradients: float | None


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that a record holds.

    Attributes:
        campaign: what was to be run.
        benches: by name of a microbenchmark, the sizes in bytes of its allreduces.
        recorded: what was run, in file order.
        missing: names of the configurations that were not.
    """

    campaign: Campaign
    benches: dict[str, list[int]]
    recorded: Sequence[Recorded]
    missing: Sequence[str]


def load(record: Path, work: Path, progress: Progress = lambda line: None) -> Evidence:
    """Return what `record` shows.

    Args:
        record: made by `pack`.
        work: an empty folder to compute in.
        progress: called with a line of text.

    Raises:
        InputError: no record, or one that is damaged.
    """
    before, now = work / "before", work / "now"
    campaign = unpack(record, before)
    shutil.copytree(before, now)
    for derived in (*now.glob("networks/*/calibration.json"), *now.glob("runs/*/prediction.json")):
        derived.unlink()
    present = [each for each in campaign.configurations if is_current(each, before)]
    recorded = []
    for number, each in enumerate(present, 1):
        progress(f"[{number}/{len(present)}] {each.name}")
        try:
            recorded.append(_recorded(each, before, now))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            place = str(record / "runs" / f"{each.name}.json.gz")
            raise InputError(f"not a record: {error!r}", place=place, remedy=_REMEDY) from error
    return Evidence(
        campaign,
        {each.bench: _sizes(stages.MeasuredNetwork.of(each, before)) for each in present},
        recorded,
        [each.name for each in campaign.configurations if each not in present],
    )


def _recorded(configuration: Configuration, before: Path, now: Path) -> Recorded:
    own = before / "runs" / configuration.name
    stamp = _mapping(own / "prediction.json")["campaign"]
    traces = [read_trace(own / f"run{repeat}") for repeat in range(configuration.repeats)]
    network = stages.MeasuredNetwork.of(configuration, before)
    late = [share for t in traces if isinstance(share := t.provenance.get("late_gradients"), float)]
    stages.fit(stages.MeasuredNetwork.of(configuration, now))
    return Recorded(
        configuration,
        _held(configuration, before),
        _held(configuration, now),
        _moment(stamp["written_at"]),
        min(_begun(trace) for trace in traces),
        stamp["inputs_fingerprint"] == campaign_module.inputs_fingerprint(configuration, network, own),
        str(traces[0].provenance.get("torch")),
        sum(late) / len(late) if late else None,
    )


def _held(configuration: Configuration, folder: Path) -> Held:
    own = folder / "runs" / configuration.name
    network = stages.MeasuredNetwork.of(configuration, folder)
    workload = load_workload(own / "workload.json.gz")
    campaign_module.write_prediction(configuration, network, workload, own)
    result = stages.conclude(configuration, network, workload, own)
    held = _mapping(own / "validation.json")
    return Held(
        result,
        {term["name"]: term["share_of_step"] for term in held["terms"]},
        tuple((bucket["measured_finished_s"], bucket["predicted_finished_s"]) for bucket in held["buckets"]),
    )


def _begun(trace: Trace) -> datetime:
    """Return when the run began; of one that does not say so, when its counted iterations did."""
    if (began := trace.provenance.get("began")) is not None:
        return _moment(str(began))
    lasted_s = max(it.end_s for it in trace.iterations) - min(it.start_s for it in trace.iterations)
    ended = _moment(str(trace.provenance["time"]))
    return datetime.fromtimestamp(ended.timestamp() - lasted_s, UTC)


def _moment(text: str) -> datetime:
    return datetime.strptime(text, _TIME).replace(tzinfo=UTC)


def _sizes(network: stages.MeasuredNetwork) -> list[int]:
    return [row["size"] for row in _mapping(network.table)["results"]]


def _mapping(path: Path) -> dict[str, Any]:
    document = read_json(path, InputError, _REMEDY)
    if not isinstance(document, dict):
        raise InputError("not an object", place=str(path), remedy=_REMEDY)
    return document
