"""What torch can do here: GPUs, backends, peer to peer."""

from __future__ import annotations

import os
import re
import socket
import subprocess
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch.distributed import fsdp

from ddpexec.groups.threads import call_within
from ddpsim.common.finding import NO, UNKNOWN, YES, Finding, format_able

GLOO_S = 20.0
"""How long a gloo group of one rank may take to come about; one that cannot resolve its host's name hangs."""
_INTERFACE = "GLOO_SOCKET_IFNAME"


def findings() -> Iterator[Finding]:
    """Yield what was found."""
    yield _cuda()
    yield _nccl()
    yield _peers()
    yield _gloo()
    yield _interface()
    yield _fully_shard()


def _python(line: str) -> str:
    return f'python -c "{line}"'


def _cuda() -> Finding:
    proof = _python("import torch; print(torch.version.cuda, torch.cuda.device_count())")
    if not torch.cuda.is_available():
        built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
        return Finding("torch on GPUs", NO, f"{torch.__version__}, {built}, sees none", proof)
    names = [torch.cuda.get_device_name(each) for each in range(torch.cuda.device_count())]
    finding = f"{torch.__version__}, CUDA {torch.version.cuda}: {len(names)} of {', '.join(dict.fromkeys(names))}"
    return Finding("torch on GPUs", YES, finding, proof)


def _nccl() -> Finding:
    proof = _python("import torch; print(torch.cuda.nccl.version())")
    if not dist.is_nccl_available():
        return Finding("NCCL", NO, "this torch is built without it", proof, "install torch for CUDA")
    try:
        version = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    except (RuntimeError, AttributeError) as error:
        return Finding("NCCL", UNKNOWN, str(error)[:200], proof)
    here = torch.cuda.is_available()
    return Finding("NCCL", format_able(here), version if here else f"{version}, but it needs a GPU", proof)


def _peers() -> Finding:
    proof = "nvidia-smi topo -p2p r"
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count < 2:
        return Finding("peer to peer", NO, f"{count} GPU{'' if count == 1 else 's'} here; it takes two", proof)
    pairs = [(one, other) for one in range(count) for other in range(count) if one != other]
    without = [pair for pair in pairs if not torch.cuda.can_device_access_peer(*pair)]
    finding = f"{len(pairs) - len(without)} of {len(pairs)} pairs of GPUs"
    missing = f", not {', '.join(f'{one} to {other}' for one, other in without[:8])}" if without else ""
    remedy = "NCCL goes through the host's memory then; `nvidia-smi topo -m` shows the way" if without else ""
    return Finding("peer to peer", format_able(not without), finding + missing, proof, remedy)


def _gloo() -> Finding:
    join = "d.init_process_group('gloo', store=d.HashStore(), rank=0, world_size=1)"
    proof = _python(f"import torch, torch.distributed as d; {join}; d.all_reduce(torch.ones(1))")
    if not dist.is_gloo_available():
        return Finding("gloo", NO, "this torch is built without it", proof)
    try:
        call_within(GLOO_S, _sum_alone, "a gloo group of one rank")
    except (RuntimeError, TimeoutError) as error:
        remedy = f"set {_INTERFACE} to an interface of `ip -br addr`, or let the host's name resolve"
        return Finding("gloo", NO, " ".join(str(error).split())[:200], proof, remedy)
    return Finding("gloo", YES, "an allreduce in a group of one rank works", proof)


def _sum_alone() -> None:
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        dist.all_reduce(torch.ones(1))
    finally:
        dist.destroy_process_group()


def _interface() -> Finding:
    """Say on which interface gloo listens: the one it is told, else that of the host name's address."""
    proof = "getent hosts $(hostname); ip -br addr"
    named = os.environ.get(_INTERFACE)
    have = _addresses()
    if named:
        here = format_able(named in have) if have else UNKNOWN
        return Finding("gloo's interface", here, f"{named}, by {_INTERFACE}; here are {', '.join(have)}", proof)
    try:
        address = call_within(GLOO_S, lambda: socket.gethostbyname(socket.gethostname()), "the name of this host")
    except (OSError, TimeoutError) as error:
        remedy = f"set {_INTERFACE} on every node"
        return Finding("gloo's interface", NO, f"the host's name has no address: {error}", proof, remedy)
    name = next((each for each, addresses in have.items() if address in addresses), None)
    finding = f"{name or 'unknown'}, by the address {address} of the host's name"
    remedy = ""
    if address.startswith("127."):
        remedy = f"other nodes cannot reach that address: for runs over several nodes, set {_INTERFACE} on each"
    return Finding("gloo's interface", YES, finding, proof, remedy)


def _addresses() -> dict[str, list[str]]:
    """Return the addresses of each interface; nothing where iproute2 is not here."""
    try:
        output = subprocess.run(["ip", "-o", "-4", "addr"], capture_output=True, text=True, timeout=GLOO_S, check=False)
    except (OSError, subprocess.SubprocessError):
        return {}
    addresses: dict[str, list[str]] = {}
    for match in re.finditer(r"^\d+: (\S+)\s+inet ([\d.]+)", output.stdout, re.MULTILINE):
        addresses.setdefault(match[1], []).append(match[2])
    return addresses


def _fully_shard() -> Finding:
    proof = _python("from torch.distributed.fsdp import fully_shard")
    here = hasattr(fsdp, "fully_shard")
    return Finding("fully_shard", format_able(here), "torch's FSDP2" if here else "not in this torch", proof)
