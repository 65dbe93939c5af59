"""Read a campaign's file: products expanded into named configurations, and all errors at once, each with its place.

Start with `parse_campaign`; above it stand the pydantic models of the YAML: networks by name, and runs on them. Units
are required.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import to_json

from ddpexec.running.settings import RunSettings
from ddpsim.bucketing import BucketCaps
from ddpsim.common.documents.errors import join_errors, problems
from ddpsim.common.documents.yaml_reading import read_mapping
from ddpsim.common.errors import InputError, UnknownNameError
from ddpsim.common.files import display_name, file_name, read_text
from ddpsim.common.options.keys import values_of, with_options
from ddpsim.common.options.option import build, list_declared
from ddpsim.schedules.named import names_code, scheme_named
from ddpsim.topology.cluster import Topology
from ddpsim.topology.processes import lab_topology
from ddpsim.topology.schema import Bandwidth, Index, Time

Count = Annotated[int, Field(ge=1, le=100_000)]
"""Of what is carried out for real, iterations or repeats: more would take weeks."""

Factor = Annotated[float, Field(gt=0, strict=False)]


class CampaignPart(BaseModel):
    """The base of every part of a campaign file, with strict kinds; keys it does not know are refused."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class SlowLinkSpec(CampaignPart):
    """The node whose link has another rate."""

    node: Index
    rate: Bandwidth


class NetworkSpec(CampaignPart):
    """A lab network, `{ranks: 4, rate: 500mbit}`, perhaps with a delay, a slow link, a trunk between two halves."""

    ranks: Annotated[int, Field(ge=2)]
    rate: Bandwidth
    delay: Time = 0.0
    slow: SlowLinkSpec | None = None
    trunk: Bandwidth | None = None

    @property
    def narrowest(self) -> float:
        """Bytes/s of the link that a ring's bytes cannot avoid."""
        rates = [self.rate, self.trunk, None if self.slow is None else self.slow.rate]
        return min(rate for rate in rates if rate is not None)


class RunSpec(CampaignPart):
    """One configuration, or with `vary` the product of lists of its fields; the options of a run are keys too.

    `workload` is replayed by timed layers, at `scale_compute` or so that the bytes of all gradients take
    `wire_over_backward` of the backward's time on the narrowest link; `model` computes.
    """

    network: str
    workload: str | None = None
    model: str | None = None
    wire_over_backward: Factor | None = None
    scale_compute: Factor | None = None
    iterations: Count | None = None
    repeats: Count | None = None

    @property
    def options(self) -> dict[str, Any]:
        """The value of each option of a run that is a key, by field."""
        return {name: value for name, value in values_of(self, RunSettings).items() if name not in _OWN}

    @model_validator(mode="after")
    def _check_agreement(self) -> RunSpec:
        if (self.workload is None) == (self.model is None):
            raise ValueError("give one of `workload` and `model`")
        if self.workload is None and (self.wire_over_backward or self.scale_compute):
            raise ValueError("a `model` computes at its own pace; drop `wire_over_backward` and `scale_compute`")
        if self.wire_over_backward is not None and self.scale_compute is not None:
            raise ValueError("give one of `wire_over_backward` and `scale_compute`")
        if self.model is None and self.options["batch_size"] is not None:
            raise ValueError("`batch_size` belongs to a `model`")
        return self


_OWN = frozenset(RunSpec.model_fields)
"""Keys that mean something else than the option of their name, or nothing of a run: the workload is scaled, the file
says how many iterations count."""

_DECIDED = ("backend", "local_iterations", "observe", "send_rate")
"""Options that a campaign decides itself."""

CampaignRun = with_options(
    RunSpec,
    RunSettings,
    without=_DECIDED,
    defaults={"implementation": "torch"},
    keys={"accumulate": "no_sync_every"},
)
"""An entry of `runs`, with all its keys."""


class MicrobenchSpec(CampaignPart):
    """Sizes of the allreduces that calibrate a network, as nccl-tests takes them, and how long a model runs beside."""

    minbytes: str = "4K"
    maxbytes: str = "64M"
    stepfactor: Annotated[int, Field(ge=2)] = 2
    load_seconds: Annotated[float, Field(ge=0.1, strict=False)] | None = None

    def arguments(self) -> list[str]:
        """Return the options of `microbench`."""
        load = [] if self.load_seconds is None else ["--load-seconds", f"{self.load_seconds:g}"]
        return ["-b", self.minbytes, "-e", self.maxbytes, "-f", str(self.stepfactor), *load]


class CampaignSpec(CampaignPart):
    """A campaign file holds its networks by name, and the runs on them."""

    name: Annotated[str, Field(min_length=1)]
    iterations: Count = 12
    repeats: Count = 1
    max_step: Time = 3.0
    interleave: bool = False
    microbench: MicrobenchSpec = MicrobenchSpec()
    networks: Annotated[dict[str, NetworkSpec], Field(min_length=1)]
    runs: Annotated[list[dict[str, Any]], Field(min_length=1)]


VARY = "vary"
CODE = ("scheme", "predictor")
"""Options that may name code of somebody's own."""
_MOST_RUNS = 10_000
"""Configurations that one `vary` may make; chosen by hand: more would run for days."""
_PARTS: Mapping[str, str | None] = {
    "network": None, "workload": None, "model": None, "batch_size": "b", "wire_over_backward": "wire",
    "scale_compute": "scale", "bucket_cap_mb": "cap", "bucket_cap_mb_list": "caps", "first_bucket_mb": "first",
    "gradient_as_bucket_view": "view", "impl": "", "scheme": "scheme", "overlap": "overlap", "input_stage": "input",
    "no_sync_every": "nosync", "process_groups": "groups", "straggler": "slow", "broadcast_buffers": "buffers",
    "iterations": None, "repeats": None, "seed": "seed",
}  # fmt: skip
"""Keys in the order of names and fingerprints, by which what earlier versions left is found again, with their short
names, None of those that have no part in a name; any other key follows, under its own name."""

_CAPS = frozenset(each.name for each in list_declared(BucketCaps))

LOCAL_ITERATIONS = 5
"""Of a run: without communication, after those that count, by which one process is timed."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """One run of a campaign.

    Attributes:
        group: tells the fields that are not defaults, bucket caps apart.
        caps: tells the bucket caps; `default` for torch's.
        interleave: whether runs take turns with one process.
    """

    group: str
    caps: str
    run: RunSpec
    network: NetworkSpec
    iterations: int
    repeats: int
    microbench: MicrobenchSpec
    interleave: bool = False

    @property
    def name(self) -> str:
        """Name of its folder."""
        return f"{self.group}-{self.caps}"

    @property
    def scheme(self) -> str:
        """What is sent and when, in words."""
        options = self.run.options
        return f"{options['scheme']}{'' if options['overlap'] == 'on' else ', no overlap'}"

    @property
    def family(self) -> str:
        """Its name, its scheme left out."""
        return f"{_group(self.run.model_copy(update={'scheme': 'ddp', 'overlap': 'on'}))}-{self.caps}"

    @property
    def bench(self) -> str:
        """Name of the microbenchmark its constants come from: its network's, taken anew beside each model that runs."""
        run = self.run
        if run.model is None:
            return run.network
        size = run.options["batch_size"]
        return f"{run.network}-beside-{run.model}{'' if size is None else f'-b{size}'}"

    def fingerprint(self) -> str:
        """Return 16 hexadecimal digits of what is to be run; fields at their defaults have no part in it."""
        run = to_json(_given(self.run)).decode()
        network = self.network.model_dump_json(exclude_defaults=True)
        content = f"{run} {network} {self.iterations} {self.repeats}{' interleaved' if self.takes_turns else ''}"
        return hashlib.sha256(content.encode()).hexdigest()[:16]

    @property
    def takes_turns(self) -> bool:
        """Whether its runs take turns with one process."""
        return self.interleave and self._runs_alone and scheme_named(self.run.options["scheme"]).servers is None

    @property
    def _runs_alone(self) -> bool:
        """Whether a run of it can also run one process; under `fully_shard` each iteration gathers parameters."""
        options = self.run.options
        return not options["drop"] and scheme_named(options["scheme"]).runner != "fully_shard"

    def settings(self, repeat: int = 0) -> RunSettings:
        """Return the settings of one run, each repeat with a seed of its own.

        Raises:
            InputError: options out of range, or in contradiction.
        """
        options = self.run.options
        values = {
            **options,
            "backend": "gloo",
            "iterations": self.iterations * options["accumulate"],
            "local_iterations": LOCAL_ITERATIONS if self._runs_alone and not self.takes_turns else 0,
            "seed": options["seed"] + 1000 * (repeat + 1),
        }
        return cast("RunSettings", build(RunSettings, values))


@dataclass(frozen=True, slots=True)
class Campaign:
    """A campaign's networks and configurations, in file order."""

    name: str
    max_step_s: float
    networks: Mapping[str, NetworkSpec]
    configurations: tuple[Configuration, ...]


def load_campaign(path: str | Path) -> Campaign:
    """Return the campaign in `path`.

    Raises:
        InputError: a file that cannot be read or is malformed, with every error in it.
    """
    text = read_text(path, InputError, "give a campaign's YAML file, as docs/how-to/lab.md shows one")
    return parse_campaign(text, display_name(path))


def parse_campaign(text: str, place: str) -> Campaign:
    """Return the campaign that YAML `text` describes; `place` names it in errors."""
    wrong: list[str] = []
    try:
        spec = CampaignSpec.model_validate(read_mapping(text, place, wanted="a campaign"))
    except ValidationError as error:
        raise join_errors(problems(error, CampaignSpec), place, InputError) from None
    configurations: dict[str, Configuration] = {}
    for number, entry in enumerate(spec.runs):
        where = f"runs.{number}"
        try:
            for each in _expand(entry, where):
                configuration = _configuration(each, spec, where)
                if configuration.name in configurations:
                    wrong.append(f"{where}: {configuration.name} stands here twice; vary its `seed`")
                configurations[configuration.name] = configuration
        except ValidationError as error:
            wrong += problems(error, CampaignRun, under=("runs", number))
        except InputError as error:
            wrong.append(str(error))
    if wrong:
        raise join_errors(wrong, place, InputError)
    return Campaign(spec.name, spec.max_step, spec.networks, tuple(configurations.values()))


def network_topology(name: str, network: NetworkSpec) -> Topology:
    """Return the topology of a campaign's network: what the simulator reads, and what is built."""
    slow = network.slow
    return lab_topology(
        network.ranks,
        network.rate,
        network.delay,
        slow=None if slow is None else (slow.node, slow.rate),
        trunk=network.trunk,
        name=name,
    )


def _expand(entry: Mapping[str, Any], where: str) -> Iterator[dict[str, Any]]:
    lists = entry.get(VARY, {})
    if not isinstance(lists, dict) or not all(isinstance(values, list) and values for values in lists.values()):
        raise InputError(f"{lists!r} does not name lists", place=f"{where}.{VARY}", remedy="write e.g. {seed: [0, 1]}")
    base = {key: value for key, value in entry.items() if key != VARY}
    if both := sorted(base.keys() & lists.keys()):
        raise InputError(f"{both[0]} is given and varied", place=f"{where}.{VARY}", remedy="keep one")
    if (count := prod(map(len, lists.values()))) > _MOST_RUNS:
        raise InputError(f"{count} runs", place=f"{where}.{VARY}", remedy=f"vary less, {_MOST_RUNS} runs at most")
    for values in product(*lists.values()):
        yield {**base, **{key: value for key, value in zip(lists, values, strict=True) if value is not None}}


def _configuration(entry: dict[str, Any], spec: CampaignSpec, where: str) -> Configuration:
    run = CampaignRun.model_validate(entry)
    if run.network not in spec.networks:
        raise UnknownNameError.among("network", run.network, spec.networks, place=f"{where}.network")
    network = spec.networks[run.network]
    configuration = Configuration(
        group=_group(run),
        caps="-".join(_parts(run, _CAPS)) or "default",
        run=run,
        network=network,
        iterations=run.iterations or spec.iterations,
        repeats=run.repeats or spec.repeats,
        microbench=spec.microbench,
        interleave=spec.interleave,
    )
    for name in (configuration.name, configuration.bench):
        file_name(name, f"{where}, whose folder takes the names in it")
    _check(configuration, where)
    return configuration


def _check(configuration: Configuration, where: str) -> None:
    """Refuse what cannot be run; where the file names code of somebody's own, only when it is carried out."""
    if any(names_code(str(configuration.run.options[name])) for name in CODE):
        return
    try:
        configuration.settings().check_ranks(configuration.network.ranks)
    except InputError as error:
        place = where if error.place is None else f"{where}.{error.place}"
        raise InputError(error.message, place=place, remedy=error.remedy) from None


def _group(run: RunSpec) -> str:
    return "-".join([_subject(run), run.network, *_parts(run, type(run).model_fields.keys() - _CAPS)])


def _subject(run: RunSpec) -> str:
    if run.workload is None:
        return f"{run.model}_real"
    return Path(run.workload).name.removesuffix(".gz").removesuffix(".json")


def _given(run: RunSpec) -> dict[str, Any]:
    """Return the keys whose values are not the defaults, in order."""
    fields = run.model_dump(exclude_defaults=True)
    return {key: fields[key] for key in (*_PARTS, *fields) if key in fields}


def _parts(run: RunSpec, keys: Collection[str]) -> list[str]:
    shown = {key: _PARTS.get(key, key) for key in keys}
    return [_part(short, value) for key, value in _given(run).items() if (short := shown.get(key)) is not None]


def _part(short: str, value: Any) -> str:
    if isinstance(value, bool):
        return short if value else f"no_{short}"
    if isinstance(value, dict):
        return short + "_".join(f"{key}x{factor:g}" for key, factor in value.items())
    if isinstance(value, tuple):
        return short + "_".join(f"{each:g}" for each in value)
    if isinstance(value, int | float):
        return f"{short}{value:g}"
    return f"{short}_{value}".removeprefix("_").replace(":", "_").replace(",", "_")
