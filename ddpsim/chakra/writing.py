"""A simulated job as Chakra execution traces: a file a rank, `NAME.RANK.et`, as ASTRA-sim's feeder names them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ddpsim.chakra.schema import Attribute, NodeType, Tensors, TraceNode, encode
from ddpsim.chakra.steps import GROUP, MODULE_BUFFERS, OPERATION, PARAMETERS, step_nodes, tensors_of
from ddpsim.common.errors import InputError
from ddpsim.common.files import write_whole
from ddpsim.common.operation import Operation
from ddpsim.common.units import format_size
from ddpsim.schedules.mesh import REPLICA
from ddpsim.schedules.message import WORLD
from ddpsim.schedules.schedule import updated_elsewhere
from ddpsim.simulation.job_run import JobRun
from ddpsim.simulation.rank_config import RankConfiguration

MOST_BYTES = 4 << 30
"""Of all files of a job together; chosen by hand, what a disk of a desktop has to spare."""

_INIT = "## process_group:init ##"
"""The node with the process groups in torch's execution traces."""


def write_traces(run: JobRun, folder: Path, name: str) -> list[Path]:
    """Write each rank's iterations that count to `NAME.RANK.et` in `folder`; return the files by rank.

    Raises:
        InputError: protobuf is not installed, ranks that run without each other or do not train, or files of more
            than `MOST_BYTES` together.
    """
    world_size, options = run.job.placement.world_size, run.job.options
    if updated_elsewhere(run.schedule):
        what = f"`scheme={options.scheme}` has ranks that are no copies of one step"
        raise InputError(what, place="chakra", remedy="take a scheme in which all ranks train together")
    if run.job.placement.devices > 1:
        what = (
            f"{run.workload.name} has {run.job.placement.devices} devices a rank, which that file does not tell apart"
        )
        raise InputError(what, place="chakra", remedy="leave it out, or take a step of one device")
    sizes = run.schedule.groups
    # A simulated rank stands for all that are alike: its nodes are made once, groups and neighbours differ by rank.
    draws: dict[int, int] = {rank: n for n, each in enumerate(run.simulated_ranks) for rank in each.stands_for}
    steps = [step_nodes(run, rank, setting) for rank, setting in zip(run.graph.ranks, run.rank_configs, strict=True)]
    files = []
    for rank in range(world_size):
        number = draws[rank]
        setting = run.rank_configs[number]
        groups = groups_of(rank, sizes, world_size)
        # The lists of process groups, parameters and module buffers come before all others.
        lists = [
            TraceNode(0, _INIT, NodeType.METADATA, inputs=Tensors(format_groups(groups))),
            TraceNode(1, PARAMETERS, NodeType.METADATA, outputs=tensors_of(setting.workload.parameters)),
            TraceNode(2, MODULE_BUFFERS, NodeType.METADATA, outputs=tensors_of(setting.workload.buffers)),
        ]
        nodes = [*lists, *_select_rank_nodes(steps[number], groups, rank)]
        data = encode(_header(run, setting, rank), nodes)
        if rank == 0 and (total := len(data) * world_size) > MOST_BYTES:
            what = f"{world_size} ranks' traces of {format_size(len(data))} are {format_size(total)}"
            remedy = "ask for fewer `nodes` or `iterations`"
            raise InputError(what, place="chakra", remedy=remedy)
        files.append(folder / f"{name}.{rank}.et")
        write_whole(files[-1], data)
    return files


def _header(run: JobRun, setting: RankConfiguration, rank: int) -> dict[str, Attribute]:
    """Return the attributes of the header: what nodes do not hold of the workload, the machine and the rank."""
    workload, placement = setting.workload, run.job.placement
    return {
        "rank": rank,
        "world_size": placement.world_size,
        "workload": workload.name,
        "device": workload.device_label,
        "precision": workload.precision,
        "batch_size": workload.batch_size,
        "ranks": max(placement.gpus_per_node, workload.ranks),
        "estimated": workload.estimated,
        "arithmetic_share": float(workload.arithmetic_share),
        "synchronises": json.dumps(list(workload.synchronises)),
        "topology": placement.topology.name,
        "scheme": run.job.options.scheme,
        **({"frozen": json.dumps([asdict(each) for each in workload.frozen])} if workload.frozen else {}),
        **({} if workload.threads is None else {"threads": workload.threads}),
        **({} if workload.optimizer_kind is None else {"optimizer": workload.optimizer_kind}),
        **({} if workload.autocast_dtype is None else {"autocast_dtype": workload.autocast_dtype}),
        **({} if workload.sequence_length is None else {"sequence_length": workload.sequence_length}),
    }


def _select_rank_nodes(nodes: Sequence[TraceNode], groups: dict[str, ProcessGroup], rank: int) -> list[TraceNode]:
    """Return the nodes of one rank, with its process groups and, where ranks send to each other, its neighbours.

    Chakra has no exchange: a receive becomes a send to the next rank of the group and a receive from the one before,
    with one tag. The receive keeps the id, for what waits for the exchange waits for the data that comes in.
    """
    selected = []
    last = max((node.id for node in nodes), default=0)
    for node in nodes:
        if not node.communicates:
            selected.append(node)
            continue
        attributes = dict(node.attributes)
        group, operation = groups[str(attributes.pop(GROUP))], attributes.pop(OPERATION)
        attributes["pg_name"] = str(group.number)
        # ASTRA-sim takes `comm_size` for the bytes that a rank puts in: of an all-gather, its part.
        if operation == Operation.ALL_GATHER:
            attributes["comm_size"] = int(attributes["comm_size"]) // len(group.ranks)
        if node.type != NodeType.COMM_RECV:
            selected.append(replace(node, attributes=attributes))
            continue
        place, size = list(group.ranks).index(rank), len(group.ranks)
        last += 1
        send = {"comm_src": rank, "comm_dst": group.ranks[(place + 1) % size], "comm_tag": node.id}
        receive = {"comm_src": group.ranks[place - 1], "comm_dst": rank, "comm_tag": node.id}
        selected.append(replace(node, id=last, type=NodeType.COMM_SEND, attributes={**attributes, **send}))
        selected.append(replace(node, attributes={**attributes, **receive}))
    return selected


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """A process group of one rank.

    Attributes:
        number: of the group, equal on its ranks and on no others.
        name: that the schedule gives it.
        ranks: that are in it, ascending.
    """

    number: int
    name: str
    ranks: Sequence[int]

    def document(self) -> dict[str, object]:
        """Return the group as torch's execution traces list it."""
        return {
            "pg_name": str(self.number),
            "pg_desc": self.name,
            "ranks": list(self.ranks),
            "group_size": len(self.ranks),
        }


def groups_of(rank: int, sizes: Mapping[str, int], world_size: int) -> dict[str, ProcessGroup]:
    """Return the process groups that `rank` is in, by name.

    Args:
        sizes: ranks of each group beside that of all, as `Schedule.groups` has them: of a `replica` the ranks of one
            place in each shard, of any other so many consecutive ranks.
    """
    found = {WORLD: ProcessGroup(0, WORLD, range(world_size))}
    first = 1
    for name, size in sizes.items():
        count = max(world_size // size, 1)
        if name == REPLICA:
            place, ranks = rank % count, range(rank % count, world_size, count)
        else:
            place, ranks = rank // size, range(rank // size * size, (rank // size + 1) * size)
        found[name] = ProcessGroup(first + place, name, ranks)
        first += count
    return found


def format_groups(groups: Mapping[str, ProcessGroup]) -> str:
    """Return the groups as the inputs of a node `process_group:init`, as torch writes it: a list of one JSON text."""
    return f"['{json.dumps([group.document() for group in groups.values()])}']"
