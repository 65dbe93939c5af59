"""Every loader with the seeds that are mutated for it."""

from __future__ import annotations

import gzip
import json
import pickle
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import yaml

from ddpexec.lab.campaign.record import unpack
from ddpexec.lab.campaign.spec import parse_campaign
from ddpsim.bucketing.order.agreement import order_report
from ddpsim.bucketing.order.arrivals import arrivals_of
from ddpsim.bucketing.order.traces import fit_document, plan_fits
from ddpsim.calibrating.measured import read_table
from ddpsim.chakra.importing import import_trace as import_chakra
from ddpsim.chakra.schema import Tensors, TraceNode, encode
from ddpsim.collectives.calibration_file import load_calibration
from ddpsim.common.errors import InputError
from ddpsim.common.files import compress, read_json, read_text
from ddpsim.common.workers.journal import open_journal
from ddpsim.explaining.explain import explain
from ddpsim.explaining.recorder import read_recorder
from ddpsim.explaining.tuned import read_tuning
from ddpsim.planning.plan_file import plan_from
from ddpsim.planning.prices import read_prices
from ddpsim.prediction.answers import Answers, Rows
from ddpsim.prediction.document import load_prediction
from ddpsim.simulation.jobs.beside_file import job_beside
from ddpsim.topology.dump import dump_topology
from ddpsim.topology.gpus.table import read_gpu
from ddpsim.topology.importers import import_topology
from ddpsim.topology.nccl_graph import with_graph_dump
from ddpsim.topology.spec import load_topology, parse_topology
from ddpsim.trace.json import read_trace
from ddpsim.workload.files import load_workload, workload_document
from ddpsim.workload.gpus import AchievedGpu
from ddpsim.workload.kineto.iterations import buckets_in
from ddpsim.workload.kineto.workload import import_trace, open_trace
from ddpsim.workload.order_trace import load_order_trace
from studies.fuzz import seeds, trees
from studies.fuzz.mutations import json_bytes, mutated_bytes, mutated_document

Load = Callable[[Path], object]
_SHARE_OF_BYTES = 0.2
"""Of the cases of a document, those mutated as text."""


@dataclass(frozen=True, slots=True)
class Target:
    """A kind of file.

    Attributes:
        file: its name in the folder that a case gets.
        load: takes the path of the file.
        seeds: pickled documents, or texts.
        encode: makes a mutated document the bytes of a file; None where seeds are texts.
    """

    name: str
    file: str
    load: Load
    seeds: Sequence[bytes]
    encode: Callable[[Any, Random], bytes] | None = None

    def content(self, random: Random) -> bytes:
        """Return the bytes of a mutated file."""
        seed = random.choice(self.seeds)
        if self.encode is None:
            content = mutated_bytes(seed, random)
        elif random.random() < _SHARE_OF_BYTES:
            content = mutated_bytes(self.encode(pickle.loads(seed), random), random)
        else:
            content = self.encode(mutated_document(pickle.loads(seed), random), random)
        if not self.file.endswith(".gz"):
            return content
        packed = gzip.compress(content, compresslevel=1, mtime=0)
        return mutated_bytes(packed, random) if random.random() < _SHARE_OF_BYTES / 10 else packed


@cache
def targets() -> dict[str, Target]:
    """Return every target by its name."""
    workload = seeds.workload()

    def plan(path: Path) -> None:
        document = read_json(path, InputError, "")
        plan_from(document, workload.parameters, str(path)).document()

    graph_machine = load_topology("hgx-a100-4")
    found = [
        Target("recorder", "dumps/nccl_trace_rank_0", _recorded, [seeds.recorder()]),
        _documents("explain", "run/rank0.json.gz", _explained, *seeds.kineto(), seeds.rank_file()),
        _texts("prices", "p.yaml", read_prices, seeds.PRICES),
        Target("journal", "out.jsonl.partial", _journal, [seeds.journal()]),
        _documents("workload", "w.json", lambda path: workload_document(load_workload(path)), seeds.workload_json()),
        _documents("workload.gz", "w.json.gz", load_workload, seeds.workload_json()),
        _documents("kineto", "t.json", import_trace, *seeds.kineto()),
        _documents(
            "kineto.shapes", "t.json.gz", lambda path: import_trace(path, workload), seeds.kineto_without_shapes()
        ),
        _documents("kineto.buckets", "t.json", lambda path: buckets_in(open_trace(path)), *seeds.kineto()[:2]),
        _documents("kineto.other", "t.json", import_trace, *seeds.execution_traces()),
        Target("chakra", "t.0.et", import_chakra, [pickle.dumps(each) for each in seeds.chakra()], _chakra_bytes),
        _documents("orders", "o.json", load_order_trace, seeds.order_trace()),
        _documents("tuning", "tuning.json", lambda path: read_tuning(path).document(), seeds.tuning()),
        _yaml("beside", "b.yaml", lambda path: job_beside(str(path), "beside"), seeds.BESIDE),
        _documents("plan", "plan.json", plan, seeds.plan()),
        _documents("calibration", "c.json", lambda path: load_calibration(path).document(), seeds.calibration()),
        _documents("prediction", "p.json", load_prediction, seeds.prediction()),
        _documents("measured.json", "m.json", read_table, *seeds.measured()),
        _texts("measured.text", "m.txt", read_table, seeds.NCCL_TESTS, seeds.OLD_NCCL_TESTS, seeds.CSV),
        _texts("measured.rccl", "m.txt", read_table, *seeds.tables_of_rccl()),
        _documents("trace", "run/rank0.json.gz", lambda path: _trace(path.parent), seeds.rank_file()),
        _documents("run", "run/run.json", lambda path: _beside_rank(path.parent), seeds.run_file()),
        _yaml("topology", "t.yaml", _topology, *seeds.topologies()),
        _texts("topology.text", "t.yaml", _topology, *seeds.topologies()),
        _yaml("topology.racks", "t.yaml", _topology, *seeds.racks()),
        _texts("topology.racks.text", "t.yaml", _topology, *seeds.racks()),
        _yaml("topology.amd", "t.yaml", _topology, *seeds.amds()),
        _texts("topology.amd.text", "t.yaml", _topology, *seeds.amds()),
        _xml("nccl_xml", "n.xml", _imported, seeds.XML, seeds.SWITCHED_XML),
        _texts("nccl_xml.text", "n.xml", _imported, seeds.XML, seeds.SWITCHED_XML),
        _xml("rccl_xml", "n.xml", _imported_amd, seeds.RCCL_XML),
        _xml("nccl_graph", "g.xml", lambda path: with_graph_dump(graph_machine, _text(path), str(path)), seeds.GRAPHS),
        _texts("nvidia_smi", "m.txt", _imported, *seeds.MATRICES),
        _texts("rocm_smi", "m.txt", _imported_amd, *seeds.matrices_of_amd()),
        _yaml("gpu", "g.yaml", _gpu, *seeds.gpus()),
        _texts("gpu.text", "g.yaml", _gpu, *seeds.gpus()),
        _yaml("gpu.amd", "g.yaml", _gpu, *seeds.amd_gpus()),
        _yaml("campaign", "c.yaml", _campaign, seeds.CAMPAIGN),
        _texts("campaign.text", "c.yaml", _campaign, seeds.CAMPAIGN),
        _documents("record", "record/runs/one.json.gz", _unpacked, seeds.record()),
    ]
    return {target.name: target for target in found}


def _documents(name: str, file: str, load: Load, *documents: object) -> Target:
    return Target(name, file, load, [pickle.dumps(document) for document in documents], json_bytes)


def _texts(name: str, file: str, load: Load, *texts: str) -> Target:
    return Target(name, file, load, [text.encode() for text in texts])


def _yaml(name: str, file: str, load: Load, *texts: str) -> Target:
    return Target(name, file, load, [pickle.dumps(yaml.safe_load(text)) for text in texts], _yaml_bytes)


def _chakra_bytes(document: object, random: Random) -> bytes:
    """Return a list of a header and nodes as a Chakra execution trace, of what is left of it that protobuf takes."""
    header, *nodes = document if isinstance(document, list) and document else [{}]
    return encode(_attributes(header), [_node(each, random) for each in nodes if isinstance(each, dict)])


def _attributes(found: object) -> dict[str, Any]:
    kept = found.items() if isinstance(found, dict) else ()
    return {
        _utf8(name): _utf8(value) if isinstance(value, str) else value
        for name, value in kept
        if isinstance(value, str | bool | float) or (isinstance(value, int) and -(1 << 63) <= value < 1 << 63)
    }


def _node(found: dict[str, Any], random: Random) -> TraceNode:
    def number(name: str, most: int = 1 << 64) -> int:
        value = found.get(name)
        return value if type(value) is int and 0 <= value < most else random.randrange(9)

    def numbers(name: str) -> tuple[int, ...]:
        value = found.get(name)
        each = value if isinstance(value, list | tuple) else ()
        return tuple(number for number in each if type(number) is int and 0 <= number < 1 << 64)

    def tensors(name: str) -> Tensors:
        value = found.get(name)
        texts = [value.get(key, "") if isinstance(value, dict) else "" for key in ("values", "shapes", "types")]
        mutated = [_utf8(each if isinstance(each, str) else json_bytes(each, random).decode()) for each in texts]
        return Tensors(*(_changed(each, random) for each in mutated))

    return TraceNode(
        number("id"), _utf8(str(found.get("name"))), number("type", 1 << 31), numbers("control"), numbers("data"),
        number("start_us"), number("duration_us"), _attributes(found.get("attributes")), tensors("inputs"),
        tensors("outputs"),
    )  # fmt: skip


def _changed(text: str, random: Random) -> str:
    """Return a text of a node, one of twenty changed: the JSON in it is read too."""
    return mutated_bytes(text.encode(), random).decode("utf-8", "replace") if random.random() < 0.05 else text


def _utf8(text: object) -> str:
    return str(text).encode("utf-8", "replace").decode()


def _xml(name: str, file: str, load: Load, *texts: str) -> Target:
    return Target(name, file, load, [pickle.dumps(trees.parsed(text)) for text in texts], trees.xml_bytes)


def _yaml_bytes(document: object, random: Random) -> bytes:
    """Return a document as YAML; half of the time as the JSON that YAML takes too."""
    if random.random() < 0.5 and not _has_numbered_keys(document):
        return json_bytes(document, random)
    try:
        text: str = yaml.dump(document, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper), sort_keys=False)
    except UnicodeEncodeError:
        return json_bytes(document, random)
    return text.encode("utf-8", "surrogatepass")


def _has_numbered_keys(document: object) -> bool:
    inner = document.values() if isinstance(document, dict) else document if isinstance(document, list) else ()
    keys = document if isinstance(document, dict) else ()
    return not all(isinstance(key, str) for key in keys) or any(map(_has_numbered_keys, inner))


def _recorded(path: Path) -> None:
    recorded = read_recorder(path.parent)
    recorded.document()
    recorded.lines()


def _explained(path: Path) -> None:
    found = explain(path)
    json.dumps(found.document())


def _journal(path: Path) -> None:
    def row(answers: Answers, of: str) -> object:
        return answers.ask(dict[str, Any], dict, of)

    with open_journal(path) as journal:
        Rows(row, seeds.ANSWERS, journal=journal).all()


def _text(path: Path) -> str:
    return read_text(path, InputError, "")


def _topology(path: Path) -> None:
    text = dump_topology(load_topology(str(path)))
    parse_topology(text, "again")


def _gpu(path: Path) -> None:
    AchievedGpu.of(read_gpu(path)).with_fitted()


def _imported(path: Path, gpu: str = "v100") -> None:
    text = _text(path)
    try:
        dump_topology(import_topology(text, str(path)))
    except InputError as error:
        if "`gpu" not in str(error):
            raise
        dump_topology(import_topology(text, str(path), gpu=gpu))


def _imported_amd(path: Path) -> None:
    _imported(path, "mi210")


def _trace(folder: Path) -> None:
    trace = read_trace(folder)
    if arrivals := arrivals_of(trace):
        order_report(arrivals).document()
        fit_document(plan_fits(trace))


def _beside_rank(folder: Path) -> None:
    if not (folder / "rank0.json.gz").exists():
        (folder / "rank0.json.gz").write_bytes(compress(json.dumps(seeds.rank_file())))
    read_trace(folder)


def _campaign(path: Path) -> None:
    for configuration in parse_campaign(_text(path), str(path)).configurations:
        configuration.fingerprint()


def _unpacked(path: Path) -> None:
    record = path.parent.parent
    (record / "networks").mkdir(exist_ok=True)
    shutil.copytree(seeds.RECORDED / "workloads", record / "workloads", dirs_exist_ok=True)
    shutil.copy(seeds.RECORDED / "campaign.yaml", record)
    unpack(record, record.parent / "out")
