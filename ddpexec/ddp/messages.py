"""What the executor says when a backward did not go as announced; the opening words are those torch's users know."""

from __future__ import annotations

from collections.abc import Sequence

from ddpexec.errors import ExecutionError, NeverReadyError, ReadyTwiceError

_UNFINISHED = (
    "Expected to have finished reduction in the prior iteration before starting a new one. This error indicates"
)
_STATIC = (
    " that your training graph has changed in this iteration, e.g., one parameter is used in first iteration, but then "
    "got unused in the second iteration. this is not compatible with static_graph set to True."
)
_UNUSED = " that your module has parameters that were not used in producing loss."
_REMEDY_UNUSED = (
    "enable unused parameter detection by passing the keyword argument `find_unused_parameters=True` to "
    "`DistributedDataParallel`, and make sure all `forward` function outputs participate in calculating loss"
)
_REMEDY_FOUND = (
    "Since `find_unused_parameters=True` is enabled, this likely means that not all `forward` function outputs "
    "participate in calculating loss; use them, or return tensors in lists, tuples, dicts or dataclasses only"
)
_DEBUG = (
    "for what torch itself can tell of the processes, set the environment variable TORCH_DISTRIBUTED_DEBUG to either "
    "INFO or DETAIL"
)


def make_never_ready_error(
    rank: int, missing: Sequence[int], names: Sequence[str], *, find_unused: bool, static: bool
) -> NeverReadyError:
    """Return the error for parameters `missing` whose gradients never came, by name and with the option to set."""
    indices = " ".join(str(index) for index in missing)
    message = (
        f"{_UNFINISHED}{_STATIC if static else _UNUSED}\n"
        f"Parameter indices which did not receive grad for rank {rank}: {indices}\n"
        f"Parameters which did not receive grad for rank {rank}: {', '.join(names[index] for index in missing)}\n"
    )
    if static:
        return NeverReadyError(message, remedy="leave static_graph out where control flow depends on the iteration")
    return NeverReadyError(message, remedy=f"{_REMEDY_FOUND if find_unused else _REMEDY_UNUSED}; {_DEBUG}")


def make_never_began_error(rank: int) -> NeverReadyError:
    """Return the error for gradients that a static graph counted without being told of the backward they came in."""
    return NeverReadyError(
        f"static_graph=True, but the first backward on rank {rank} began at no output of forward, so that its "
        "gradients were not reduced",
        remedy="return tensors in lists, tuples, dicts or dataclasses, and call backward on what comes of them",
    )


def make_broken_off_error(rank: int, failure: str) -> ExecutionError:
    """Return the error for a backward that had all its gradients, but ended in `failure` before they were reduced."""
    reason = f": {failure}" if failure else ""
    return ExecutionError(
        f"{_UNFINISHED} that the previous backward on rank {rank} broke off before its gradients were reduced{reason}",
        remedy="mend what that backward raised, then wrap the module anew",
    )


def make_ready_twice_error(rank: int, index: int, name: str) -> ReadyTwiceError:
    """Return the error for a gradient that came twice in one backward."""
    return ReadyTwiceError(
        f"Expected to mark a variable ready only once: parameter {index} ({name}) was ready twice on rank {rank} in "
        "one backward",
        remedy="call backward once a forward; where activation checkpointing or a reentrant backward visits a "
        "parameter several times, use checkpoint(..., use_reentrant=False) or static_graph=True",
    )


def graph_changed(rank: int, index: int, name: str) -> ExecutionError:
    """Return the error for a parameter that a static graph did not use before."""
    return ExecutionError(
        f"Your training graph has changed in this iteration: parameter {index} ({name}) was unused in the first "
        f"iteration on rank {rank} and got used now, which is not compatible with static_graph set to True",
        remedy="leave static_graph out, or make the first iteration use every parameter",
    )
