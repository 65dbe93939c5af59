"""Read a campaign's file: every error at once, each with its place; products expanded, names given."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ddpexec.campaign.schema import CAP_OPTIONS, CampaignSpec, MicrobenchSpec, NetworkSpec, RunSpec
from ddpexec.netlab.shapes import lab_topology
from ddpsim.documents import problems, raised
from ddpsim.documents.yaml_reading import read_mapping
from ddpsim.errors import InputError, UnknownNameError
from ddpsim.files import display_name, file_name, read_text
from ddpsim.topology.cluster import Topology

VARY = "vary"
_MOST_RUNS = 10_000
"""Configurations that one `vary` may make; chosen by hand: more would run for days."""
_SHORT = {
    "wire_over_backward": "wire",
    "scale_compute": "scale",
    "bucket_cap_mb": "cap",
    "bucket_cap_mb_list": "caps",
    "first_bucket_mb": "first",
    "gradient_as_bucket_view": "view",
    "no_sync_every": "nosync",
    "process_groups": "groups",
    "straggler": "slow",
    "batch_size": "b",
    "input_stage": "input",
    "broadcast_buffers": "buffers",
}


@dataclass(frozen=True, slots=True)
class Configuration:
    """One run of a campaign.

    Attributes:
        group: tells the fields that are not defaults, bucket caps apart.
        caps: tells the bucket caps; `default` for torch's.
    """

    group: str
    caps: str
    run: RunSpec
    network: NetworkSpec
    iterations: int
    repeats: int
    microbench: MicrobenchSpec

    @property
    def name(self) -> str:
        """Name of its folder."""
        return f"{self.group}-{self.caps}"

    @property
    def scheme(self) -> str:
        """What is sent and when, in words."""
        return self.run.scheme if self.run.overlap == "on" else f"{self.run.scheme}, no overlap"

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
        batch = "" if run.batch_size is None else f"-b{run.batch_size}"
        return f"{run.network}-beside-{run.model}{batch}"

    def fingerprint(self) -> str:
        """Return 16 hexadecimal digits of what is to be run; fields at their defaults have no part in it."""
        parts = (part.model_dump_json(exclude_defaults=True) for part in (self.run, self.network))
        content = f"{' '.join(parts)} {self.iterations} {self.repeats}"
        return hashlib.sha256(content.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Campaign:
    """A campaign is its networks and its configurations, in file order."""

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
        spec = CampaignSpec.model_validate(read_mapping(text, place))
    except ValidationError as error:
        raise raised(problems(error, CampaignSpec), place, InputError) from None
    found: dict[str, Configuration] = {}
    for number, entry in enumerate(spec.runs):
        where = f"runs.{number}"
        try:
            for each in _expanded(entry, where):
                configuration = _configuration(each, spec, where)
                if configuration.name in found:
                    wrong.append(f"{where}: {configuration.name} stands here twice; vary its `seed`")
                found[configuration.name] = configuration
        except ValidationError as error:
            wrong += problems(error, RunSpec, under=("runs", number))
        except InputError as error:
            wrong.append(str(error))
    if wrong:
        raise raised(wrong, place, InputError)
    return Campaign(spec.name, spec.max_step, spec.networks, tuple(found.values()))


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


def _expanded(entry: Mapping[str, Any], where: str) -> Iterator[dict[str, Any]]:
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
    run = RunSpec.model_validate(entry)
    if run.network not in spec.networks:
        raise UnknownNameError.among("network", run.network, spec.networks, place=f"{where}.network")
    network = spec.networks[run.network]
    for rank in run.straggler:
        if rank >= network.ranks:
            raise InputError(f"rank {rank} of {network.ranks}", place=f"{where}.straggler", remedy="number from 0")
    configuration = Configuration(
        group=_group(run),
        caps="-".join(_parts(run, CAP_OPTIONS)) or "default",
        run=run,
        network=network,
        iterations=run.iterations or spec.iterations,
        repeats=run.repeats or spec.repeats,
        microbench=spec.microbench,
    )
    for name in (configuration.name, configuration.bench):
        file_name(name, f"{where}, whose folder takes the names in it")
    return configuration


def _group(run: RunSpec) -> str:
    return "-".join([_subject(run), run.network, *_parts(run, RunSpec.model_fields.keys() - CAP_OPTIONS)])


def _subject(run: RunSpec) -> str:
    if run.workload is None:
        return f"{run.model}_real"
    return Path(run.workload).name.removesuffix(".gz").removesuffix(".json")


def _parts(run: RunSpec, keys: Collection[str]) -> list[str]:
    told = {"network", "workload", "model", "iterations", "repeats"}
    fields = run.model_dump(exclude_defaults=True, exclude=told)
    return [_part(key, fields[key]) for key in RunSpec.model_fields if key in fields and key in keys]


def _part(key: str, value: Any) -> str:
    short = _SHORT.get(key, key)
    if isinstance(value, bool):
        return short if value else f"no_{short}"
    if isinstance(value, str):
        return value if key == "impl" else f"{short}_{value}".replace(":", "_").replace(",", "_")
    if isinstance(value, dict):
        return short + "_".join(f"{rank}x{factor:g}" for rank, factor in value.items())
    if isinstance(value, list):
        return short + "_".join(f"{each:g}" for each in value)
    return f"{short}{value:g}"
