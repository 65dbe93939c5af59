"""All ranks of a job as one MPI communicator: mpirun's own, or joined one to the other where torchrun started them."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ddpexec.groups.environment import is_under_mpirun
from ddpexec.groups.threads import call_within
from ddpsim.common.errors import InputError
from ddpsim.common.parent import die_with_parent

_SERVER_S = 10.0
"""How long Open MPI's name server may take to say where it is; chosen by hand, it takes some 0.1 s."""
_LEAVE_S = 5.0
"""How long MPI_Finalize may take, which waits for the other ranks; chosen by hand."""
_SERVER_URI = "OMPI_MCA_pmix_server_uri"
_YIELD = "OMPI_MCA_mpi_yield_when_idle"


class _World:
    """The communicator of all ranks, constructed once a process, and whether MPI may be finalized."""

    def __init__(self) -> None:
        self.all: Any = None
        self.broken = False
        self.server: subprocess.Popen[bytes] | None = None


_world = _World()


def mpi() -> Any:
    """Return mpi4py's `MPI`, with MPI initialised for calls from several threads.

    Open MPI waits by polling, beside the thread that computes: unless the environment says otherwise it is asked to
    yield its core meanwhile (`mpi_yield_when_idle`).

    Raises:
        InputError: mpi4py or an MPI library is missing, or MPI allows one thread alone.
    """
    try:
        import mpi4py

        mpi4py.rc.finalize = False
        os.environ.setdefault(_YIELD, "1")
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        remedy = "install Open MPI (Debian: `apt install openmpi-bin`) and `pip install 'ddpsim[mpi]'`"
        raise InputError(f"MPI cannot be used here: {reason}", place="backend=mpi", remedy=remedy) from error
    if MPI.Query_thread() != MPI.THREAD_MULTIPLE:
        what = "this MPI takes calls of one thread alone"
        remedy = "use one with MPI_THREAD_MULTIPLE, as Open MPI 4 is"
        raise InputError(what, place="backend=mpi", remedy=remedy)
    return MPI


def meeting_point() -> tuple[str, str]:
    """Return where rank 0 of mpirun's ranks is to keep torch's store: its host's name, and a port free there."""
    everybody = mpi().COMM_WORLD
    point = None
    if everybody.rank == 0:
        with socket.socket() as free:
            free.bind(("", 0))
            alone = everybody.size == int(os.environ["OMPI_COMM_WORLD_LOCAL_SIZE"])
            point = "127.0.0.1" if alone else socket.gethostname(), str(free.getsockname()[1])
    host, port = everybody.bcast(point)
    return host, port


def communicator_of(store: Any, rank: int, size: int, ranks: Sequence[int]) -> Any:
    """Return a communicator of its own for a process group.

    Args:
        store: torch's, of the group.
        rank, size: of this process in the group.
        ranks: the group's, as ranks of the default group; empty of the default group itself.
    """
    if _world.all is None:
        if ranks:
            what = "the default group is of another backend, and MPI's ranks have not met"
            raise InputError(what, place="backend=mpi", remedy="call init_process_group with backend `mpi4py`")
        _world.all = _mpiruns(rank, size) if is_under_mpirun() else _join_processes(store, rank, size)
    module = mpi()
    members = _world.all.group.Incl(list(ranks)) if ranks else _world.all.group
    subgroup = _world.all.Create_group(members)
    members.Free()
    subgroup.Set_errhandler(module.ERRORS_RETURN)
    return subgroup


def abandon() -> None:
    """Never again wait for other ranks: one of them has not come, or this one ends by an error."""
    _world.broken = True


def leave() -> None:
    """End MPI in order, where mpirun would take anything else for a failure; after `abandon` do nothing."""
    server, _world.server = _world.server, None
    if _world.all is not None and not _world.broken and is_under_mpirun():
        module = mpi()
        if not module.Is_finalized():
            call_within(_LEAVE_S, module.Finalize, "MPI_Finalize")
    if server is not None:
        server.terminate()
        server.wait()


def _mpiruns(rank: int, size: int) -> Any:
    everybody = mpi().COMM_WORLD
    if (everybody.rank, everybody.size) != (rank, size):
        what = f"torch's rank {rank} of {size} is rank {everybody.rank} of {everybody.size} for MPI"
        raise InputError(what, place="backend=mpi", remedy="take RANK and WORLD_SIZE from mpirun's, or leave them out")
    return everybody


def _join_processes(store: Any, rank: int, size: int) -> Any:
    """Return a communicator of processes that MPI takes for jobs of one rank each.

    Rank 0 starts Open MPI's name server, without which jobs cannot connect, and takes the others in by rank. Every
    process that is in takes part each time. Source: MPI 4.0, section 11.9, `MPI_Comm_accept`.

    Raises:
        InputError: no name server.
    """
    if size > 1:
        os.environ[_SERVER_URI] = _server_of_names(store, rank)
    module = mpi()
    together = module.COMM_SELF
    for newcomer in range(1, size):
        if rank > newcomer:
            continue
        port = f"ddpexec/mpi/{newcomer}"
        if rank == 0:
            name = module.Open_port()
            store.set(port, name)
        else:
            store.wait([port])
            name = store.get(port).decode()
        between = together.Connect(name) if rank == newcomer else together.Accept(name)
        together = between.Merge(high=rank == newcomer)
        between.Free()
        if rank == 0:
            module.Close_port(name)
    return together


def _server_of_names(store: Any, rank: int) -> str:
    """Return the address of the name server that rank 0 starts; every rank calls this.

    Raises:
        InputError: rank 0 cannot start it.
    """
    key = "ddpexec/mpi/server"
    if rank == 0:
        uri = ""
        try:
            uri = _start_server()
        finally:
            store.set(key, uri)
        return uri
    store.wait([key])
    uri = str(store.get(key).decode())
    if not uri:
        what = "rank 0 could not start Open MPI's name server"
        raise InputError(what, place="backend=mpi", remedy="see its message, or start the ranks by mpirun")
    return uri


def _start_server() -> str:
    remedy = "start the ranks by `mpirun -np N`, which needs none"
    program = shutil.which("ompi-server")
    if program is None:
        what = "ranks that torchrun started meet over Open MPI's `ompi-server`, which is not here"
        raise InputError(what, place="backend=mpi", remedy=remedy)
    with TemporaryDirectory() as folder:
        uri_file = Path(folder) / "uri"
        _world.server = subprocess.Popen(
            [program, "--no-daemonize", "--report-uri", str(uri_file)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=partial(die_with_parent, signal.SIGTERM),
        )
        until = time.monotonic() + _SERVER_S
        while time.monotonic() < until and _world.server.poll() is None:
            if uri_file.exists() and (text := uri_file.read_text()).endswith("\n"):
                return text.split("\n")[0]
            time.sleep(0.02)
    raise InputError(f"`ompi-server` said no address within {_SERVER_S:g} s", place="backend=mpi", remedy=remedy)
