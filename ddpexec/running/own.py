"""A step of the user's own under DDP: its calls of the module go through the wrapper, its phases are told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ddpexec.capturing.own_step import load_own_step
from ddpexec.capturing.phases import Phases, batch_size_of
from ddpexec.ddp.parameters import collect
from ddpexec.errors import OptionError
from ddpexec.running.slower import SlowedModule
from ddpexec.timing.clock import Moment
from ddpexec.timing.observe import Note, Observer, note_backward


class OwnStamps:
    """Takes the moments of one iteration, from the start of its forward.

    Args:
        observer: of the rank.
        slower: makes it a straggler, or None.
        index: of the iteration.
        loads: whether the iteration begins now, with what loads its batch, rather than with forward.
    """

    def __init__(self, observer: Observer, slower: SlowedModule | None, index: int, *, loads: bool = False) -> None:
        self._observer, self._slower, self._index = observer, slower, index
        self._note = observer.begin(index, synced=True) if loads else None
        self._began: Moment | None = None

    @property
    def note(self) -> Note:
        """What is noted of the iteration, which has begun."""
        assert self._note is not None
        return self._note

    def begin(self) -> None:
        """Forward begins."""
        if self._note is None:
            self._note = self._observer.begin(self._index, synced=True)
        else:
            self._note.loaded = self._note.start, self._observer.now()

    def end_forward(self) -> None:
        """Forward of the wrapper has returned."""
        self.note.returned = self._observer.now()

    def backward(self) -> None:
        """Backward begins."""
        self._start()

    def backward_end(self) -> None:
        """Backward is over, and the optimizer begins."""
        note_backward(self.note, self._began, self._observer.now())
        self._start()

    def end(self) -> None:
        """The iteration is over."""
        if self._slower is not None:
            self._slower.end()
        self.note.optimizer = self._began, self._observer.now()
        self._observer.close()

    def _start(self) -> None:
        self._began = self._observer.now()
        if self._slower is not None:
            self._slower.begin()


class OwnTraining:
    """Trains what a user's function returned.

    The step calls the module that it was made with; `wrap` lets that call go to the wrapper, which calls the module in
    its turn.

    Args:
        path: `package.module:function`.
        device: of this rank; what the function makes without saying where is made there.

    Attributes:
        batch_size: samples a step, seen in the first forward.

    Raises:
        InputError: the function cannot be imported, raises, or returns something else; or its module is elsewhere.
    """

    def __init__(self, path: str, device: torch.device) -> None:
        with torch.device(device):
            self._own = load_own_step(path)
        self.path, self.name, self.module = path, self._own.name, self._own.module
        self.batch_size = 0
        self._stamps: OwnStamps | None = None
        self._inside = False
        self._phases = Phases(self.module, (), self)
        where = {parameter.device.type for parameter in collect(self.module).tensors}
        if where != {device.type}:
            what = f"the step's module is on {', '.join(sorted(where)) or 'no device'}, the rank on {device.type}"
            raise OptionError(what, place=f"--step {path}", remedy="make it where the rank is, or give --device")

    def wrap(self, ddp: nn.Module) -> None:
        """Let calls of the module go through `ddp`, which wraps it; evaluation and recomputation do not."""
        plain: Any = type(self.module)

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if self._inside or self._stamps is None or not torch.is_grad_enabled():
                return plain.__call__(module, *args, **kwargs)
            self._inside = True
            self._stamps.begin()
            output = ddp(*args, **kwargs)
            self._inside = False
            self._stamps.end_forward()
            return output

        self.module.__class__ = type(plain.__name__, (plain,), {"__call__": call, "__module__": plain.__module__})
        self._phases.install()

    def step(self, stamps: OwnStamps) -> None:
        """Train once, and tell `stamps` where its phases begin.

        Raises:
            WorkloadError: the step has not exactly one forward and one backward.
        """
        self._stamps, self._inside = stamps, False
        self._own.step()
        self._phases.end_step()

    def close(self) -> None:
        """Watch backward no longer."""
        self._phases.remove()

    def on_forward(self, inputs: Sequence[object]) -> None:
        """See how many samples there are."""
        self.batch_size = self.batch_size or batch_size_of(inputs) or 0

    def on_backward(self) -> None:
        """Tell that backward begins, in which a checkpoint may call the module again."""
        assert self._stamps is not None
        self._inside = True
        self._stamps.backward()

    def on_gradient(self, index: int, parameter: Tensor) -> None:
        """Do nothing: the reducer has its own hooks."""

    def on_backward_end(self) -> None:
        """Tell that backward is over."""
        assert self._stamps is not None
        self._inside = False
        self._stamps.backward_end()
