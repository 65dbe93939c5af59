"""Streams and events that do nothing, so that what torch's DDP keeps for accelerators can be an oracle on a CPU."""

from __future__ import annotations

from typing import Any

import torch


class Nothing:
    """A stream, event or context of an accelerator that is not there."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __enter__(self) -> Nothing:
        return self

    def __exit__(self, *_: Any) -> None: ...

    def record(self, *_: Any, **__: Any) -> None: ...

    def synchronize(self) -> None: ...

    def wait(self, *_: Any, **__: Any) -> None: ...

    def wait_stream(self, *_: Any) -> None: ...


def no_streams() -> None:
    """Replace torch's streams and events for the rest of this process; a CPU does everything in order anyway."""
    torch.Stream = torch.Event = Nothing  # type: ignore[misc,assignment]
    torch.accelerator.current_stream = lambda *_, **__: Nothing()  # type: ignore[assignment]
