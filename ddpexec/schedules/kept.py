"""What a scheme keeps on a rank beside the module's and the optimizer's state, saved and taken up again.

Where it stands between two averages, SlowMo's last parameters and momentum, the gradients that GradientFlow has not
sent yet, and the optimizers of a server's part.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from ddpexec.errors import OptionError
from ddpexec.schedules.scheme_schedule import SchemeSchedule
from ddpexec.schedules.served import Server

Kept = dict[str, Any]
"""As `state_of` returns it: plain values and tensors, which `torch.save` takes."""


def scheme_state_dict(wrapper: Any) -> Kept:
    """Return what the scheme keeps on this rank beside the module's and the optimizer's state, after pending steps.

    Every rank saves its own, with its module's; a server once `serve` has returned, which it does where the others
    `end`, after which all may go on.
    """
    wrapper.complete()
    return state_of(wrapper.reducer, wrapper._server())


def load_scheme_state_dict(wrapper: Any, state: Kept) -> None:
    """Take what `scheme_state_dict` returned on this rank, after the module's and the optimizer's own state.

    Raises:
        OptionError: another scheme's, rank's or number of ranks', or while it learns when gradients come.
    """
    if wrapper.learns:
        what, remedy = "the schedule is still to be made", "give `learn=0`, or load once it has learned"
        raise OptionError(what, place="scheme's state", remedy=remedy)
    wrapper.complete()
    load_state(wrapper.reducer, wrapper._server(), state)


def state_of(carried: SchemeSchedule, server: Server | None) -> Kept:
    """Return what is kept on this rank; nothing may be pending."""
    return {
        "scheme": carried.schedule.scheme,
        "place": carried.place,
        "progress": carried.progress(),
        "tensors": [tensor.detach().clone() for tensor in carried.memory.kept],
        "server": None if server is None else server.state_dict(),
    }


def load_state(carried: SchemeSchedule, server: Server | None, state: Kept) -> None:
    """Take up what `state_of` returned on this rank of as many.

    Raises:
        OptionError: the state of another scheme, of another rank or number of ranks, or of another model.
    """
    for key, here in (("scheme", carried.schedule.scheme), ("place", carried.place)):
        if state[key] != here:
            what, remedy = f"the state is of {key} {state[key]!r}", f"load that of {here!r}, which this is"
            raise OptionError(what, place="scheme's state", remedy=remedy)
    if (sizes := _sizes(state["tensors"])) != (own := _sizes(carried.memory.kept)):
        what, remedy = f"the state is of tensors of {sizes} elements, not {own}", "load that of the same model"
        raise OptionError(what, place="scheme's state", remedy=remedy)
    for tensor, value in zip(carried.memory.kept, state["tensors"], strict=True):
        tensor.copy_(value)
    carried.resume(state["progress"])
    if server is not None and state["server"] is not None:
        server.load_state_dict(state["server"])


def _sizes(tensors: Iterable[Tensor]) -> list[int]:
    return [tensor.numel() for tensor in tensors]
