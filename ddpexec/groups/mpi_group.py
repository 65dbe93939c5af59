"""A process group of torch over MPI: stock torch in its wheels has none, and its name `mpi` refuses any other.

`register()` makes `torch.distributed.init_process_group("mpi4py")` one of these.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ddpexec.errors import OptionError
from ddpexec.groups.mpi_work import MpiCalls, MpiWork, buffer_of, check_tensor, contiguous, is_average, reduction
from ddpexec.groups.mpi_world import communicator_of, leave, mpi

NAME = "mpi4py"
"""The name torch knows it by."""


def register() -> None:
    """Tell torch of it; a second call changes nothing."""
    if NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu"])


def _create(options: Any, _: Any) -> ProcessGroupMpi:
    ranks = list(options.global_ranks_in_group)
    communicator = communicator_of(options.store, options.group_rank, options.group_size, ranks)
    return ProcessGroupMpi(communicator, options.store, options.timeout)


class ProcessGroupMpi(dist.ProcessGroup):
    """Collectives, sends and receives of tensors on the CPU by MPI; one collective is in flight at a time.

    Args:
        communicator: MPI's, of this group alone.
        store: torch's.
        timeout: how long a call may take.

    Attributes:
        options: the timeout, where torch's own backends have it.
    """

    def __init__(self, communicator: Any, store: Any, timeout: timedelta) -> None:
        super().__init__(communicator.rank, communicator.size)  # type: ignore[call-arg]
        self._communicator, self._rank, self._size = communicator, communicator.rank, communicator.size
        self._calls = MpiCalls(timeout)
        self._name = ""
        self.options = SimpleNamespace(_timeout=timeout)

    def getBackendName(self) -> str:  # noqa: N802
        """Return `mpi`."""
        return "mpi"

    def _get_backend(self, _: torch.device) -> Any:
        return self

    def _set_group_name(self, name: str) -> None:
        # torch's own keeps it with a C++ backend, and forgets it of a group without one.
        self._name = name

    @property
    def group_name(self) -> Any:
        """The name that torch has given it."""
        return self._name

    def allreduce(self, tensors: Any, opts: Any = None) -> MpiWork:  # type: ignore[override]
        """Reduce a tensor in place, by default to the sum."""
        operation = _operation(opts, dist.AllreduceOptions)
        tensor = _take_only(tensors)
        reduced = reduction(operation, tensor.dtype)

        def call() -> None:
            with contiguous(tensor) as piece:
                self._communicator.Allreduce(mpi().IN_PLACE, buffer_of(piece), reduced)
                self._average(operation, piece)

        return self._calls.carry_out("allreduce", call, [tensor])

    def reduce(self, tensors: Any, opts: Any = None) -> MpiWork:  # type: ignore[override]
        """Reduce a tensor to the root's."""
        opts = opts or dist.ReduceOptions()
        tensor, root = _take_only(tensors), opts.rootRank
        reduced = reduction(opts.reduceOp, tensor.dtype)

        def call() -> None:
            with contiguous(tensor) as piece:
                here = self._rank == root
                sent = mpi().IN_PLACE if here else buffer_of(piece)
                self._communicator.Reduce(sent, buffer_of(piece) if here else None, reduced, root)
                if here:
                    self._average(opts.reduceOp, piece)

        return self._calls.carry_out("reduce", call, [tensor])

    def broadcast(self, tensors: Any, opts: Any = None) -> MpiWork:  # type: ignore[override]
        """Overwrite a tensor by the root's."""
        root = opts if isinstance(opts, int) else (opts or dist.BroadcastOptions()).rootRank
        tensor = _take_only(tensors)

        def call() -> None:
            with contiguous(tensor) as piece:
                self._communicator.Bcast(buffer_of(piece), root)

        return self._calls.carry_out("broadcast", call, [tensor])

    def allgather(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> MpiWork:
        """Gather every rank's tensor, each into one of its own."""
        tensor, outputs = _take_only(input_tensors), [check_tensor(each) for each in output_tensors[0]]
        equal = all(each.numel() == tensor.numel() for each in outputs)

        def call() -> None:
            whole = torch.empty(sum(each.numel() for each in outputs), dtype=tensor.dtype)
            with contiguous(tensor) as piece:
                if equal:
                    self._communicator.Allgather(buffer_of(piece), buffer_of(whole))
                else:
                    self._communicator.Allgatherv(buffer_of(piece), _parts(whole, outputs))
            _spread(whole, outputs)

        return self._calls.carry_out("allgather", call, [outputs])

    def gather(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> MpiWork:  # type: ignore[override]
        """Gather every rank's tensor at the root."""
        root, tensor = (opts or dist.GatherOptions()).rootRank, _take_only(input_tensors)
        outputs = [check_tensor(each) for each in output_tensors[0]] if self._rank == root else []

        def call() -> None:
            whole = torch.empty(len(outputs) * tensor.numel(), dtype=tensor.dtype)
            with contiguous(tensor) as piece:
                self._communicator.Gather(buffer_of(piece), buffer_of(whole) if outputs else None, root)
            _spread(whole, outputs)

        return self._calls.carry_out("gather", call, [outputs])

    def scatter(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> MpiWork:  # type: ignore[override]
        """Give each rank one of the root's tensors."""
        root, tensor = (opts or dist.ScatterOptions()).rootRank, _take_only(output_tensors)
        inputs = [check_tensor(each) for each in input_tensors[0]] if self._rank == root else []

        def call() -> None:
            whole = buffer_of(_flat(inputs)) if inputs else None
            with contiguous(tensor) as piece:
                self._communicator.Scatter(whole, buffer_of(piece), root)

        return self._calls.carry_out("scatter", call, [tensor])

    def reduce_scatter(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> MpiWork:  # type: ignore[override]
        """Reduce one tensor for each rank, and give each its own."""
        tensor, inputs = _take_only(output_tensors), [check_tensor(each) for each in input_tensors[0]]
        return self._reduce_scatter(tensor, lambda: _flat(inputs), [each.numel() for each in inputs], opts)

    def reduce_scatter_single(self, output: Tensor, input_: Tensor, opts: Any = None) -> MpiWork:
        """Reduce a tensor, and give each rank an equal part."""
        check_tensor(output), check_tensor(input_)
        part = input_.numel() // self._size
        return self._reduce_scatter(output, lambda: input_.contiguous().view(-1), [part] * self._size, opts)

    def all_gather_single(self, output: Tensor, input_: Tensor, opts: Any = None) -> MpiWork:
        """Gather every rank's tensor into one."""
        check_tensor(output), check_tensor(input_)

        def call() -> None:
            piece = input_.contiguous()
            with contiguous(output) as whole:
                start = whole.data_ptr() + self._rank * piece.nbytes
                sent = mpi().IN_PLACE if piece.data_ptr() == start else buffer_of(piece)
                self._communicator.Allgather(sent, buffer_of(whole))

        return self._calls.carry_out("all-gather", call, [output])

    def alltoall(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> MpiWork:
        """Send each rank one tensor, and receive one of each."""
        outputs, inputs = ([check_tensor(each) for each in each_] for each_ in (output_tensors, input_tensors))

        def call() -> None:
            piece, whole = _flat(inputs), torch.empty(sum(each.numel() for each in outputs), dtype=outputs[0].dtype)
            self._communicator.Alltoallv(_parts(piece, inputs), _parts(whole, outputs))
            _spread(whole, outputs)

        return self._calls.carry_out("all-to-all", call, outputs)

    def all_to_all_single(
        self,
        output: Tensor,
        input_: Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
        opts: Any = None,
    ) -> MpiWork:
        """Send each rank a part along the first dimension, and receive one of each; equal parts where no splits are."""
        check_tensor(output), check_tensor(input_)

        def counts(tensor: Tensor, splits: Sequence[int]) -> list[int]:
            if not splits:
                return [tensor.numel() // self._size] * self._size
            row = tensor[0].numel() if len(tensor) else 0
            return [split * row for split in splits]

        def call() -> None:
            piece = input_.contiguous()
            with contiguous(output) as whole:
                sent, received = counts(piece, input_splits), counts(whole, output_splits)
                if input_splits or output_splits:
                    self._communicator.Alltoallv(
                        _make_counted_buffer(piece, sent), _make_counted_buffer(whole, received)
                    )
                else:
                    self._communicator.Alltoall(buffer_of(piece), buffer_of(whole))

        return self._calls.carry_out("all-to-all", call, [output])

    def barrier(self, opts: Any = None) -> MpiWork:
        """Wait until every rank is here."""
        return self._calls.carry_out("barrier", self._communicator.Barrier, [])

    def send(self, tensors: Any, dst: int, tag: int = 0) -> MpiWork:
        """Begin to send a tensor."""
        piece = _take_only(tensors).contiguous()
        return self._calls.begin(
            f"send to {dst}", lambda: self._communicator.Isend(buffer_of(piece), dst, tag), [piece]
        )

    def recv(self, tensors: Any, src: int, tag: int = 0) -> MpiWork:
        """Begin to receive a tensor."""
        tensor = _contiguous_only(tensors)
        what = f"receive from {src}"
        return self._calls.begin(what, lambda: self._communicator.Irecv(buffer_of(tensor), src, tag), [tensor])

    def recv_anysource(self, tensors: Any, tag: int = 0) -> MpiWork:
        """Begin to receive a tensor of whichever rank sends one."""
        tensor, anyone = _contiguous_only(tensors), mpi().ANY_SOURCE
        return self._calls.begin("receive", lambda: self._communicator.Irecv(buffer_of(tensor), anyone, tag), [tensor])

    # As torch called them before 2.13.
    _allgather_base = all_gather_single  # type: ignore[assignment]
    _reduce_scatter_base = reduce_scatter_single  # type: ignore[assignment]
    alltoall_base = all_to_all_single  # type: ignore[assignment]

    def shutdown(self) -> None:
        """Wait for calls under way; the default group's end is MPI's."""
        self._calls.close()
        if dist.is_initialized() and self is dist.group.WORLD:
            leave()

    def abort(self) -> None:
        """Let all calls fail, those under way too."""
        self._calls.abort()

    def _reduce_scatter(self, output: Tensor, flat: Callable[[], Tensor], counts: list[int], opts: Any) -> MpiWork:
        operation = _operation(opts, dist.ReduceScatterOptions)
        reduced = reduction(operation, output.dtype)

        def call() -> None:
            piece = flat()
            result = torch.empty(counts[self._rank], dtype=output.dtype)
            if len(set(counts)) == 1:
                self._communicator.Reduce_scatter_block(buffer_of(piece), buffer_of(result), reduced)
            else:
                self._communicator.Reduce_scatter(buffer_of(piece), buffer_of(result), counts, reduced)
            self._average(operation, result)
            output.copy_(result.view_as(output))

        return self._calls.carry_out("reduce-scatter", call, [output])

    def _average(self, operation: Any, tensor: Tensor) -> None:
        if is_average(operation):
            tensor.div_(self._size)


def _operation(opts: Any, kind: Any) -> Any:
    return opts if isinstance(opts, dist.ReduceOp.RedOpType) else (opts or kind()).reduceOp


def _take_only(tensors: Any) -> Tensor:
    if isinstance(tensors, Tensor):
        return check_tensor(tensors)
    if len(tensors) != 1:
        raise OptionError(f"{len(tensors)} tensors in one call: MPI takes one", remedy="make a call for each")
    return check_tensor(tensors[0])


def _contiguous_only(tensors: Any) -> Tensor:
    tensor = _take_only(tensors)
    if not tensor.is_contiguous():
        raise OptionError("a tensor that is not contiguous is received", remedy="receive a contiguous one, and copy")
    return tensor


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([each.reshape(-1) for each in tensors])


def _spread(whole: Tensor, tensors: Sequence[Tensor]) -> None:
    for each, part in zip(tensors, torch.split(whole, [each.numel() for each in tensors]), strict=True):
        each.copy_(part.view(each.shape))


def _parts(whole: Tensor, tensors: Sequence[Tensor]) -> list[Any]:
    return _make_counted_buffer(whole, [each.numel() for each in tensors])


def _make_counted_buffer(whole: Tensor, counts: Sequence[int]) -> list[Any]:
    """Return a buffer of parts of so many elements, one behind the other."""
    memory, kind = buffer_of(whole)
    starts = [0, *itertools.accumulate(counts)][:-1]
    return [memory, (list(counts), starts), kind]
