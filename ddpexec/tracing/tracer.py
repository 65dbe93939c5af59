"""`ddpexec.trace`: a training loop of one's own, traced in three lines.

::

    import ddpexec                                            # 1

    with ddpexec.trace("out"):                                # 2
        for batch in loader:                                  # 3: the loop, one level in
            optimizer.zero_grad()
            loss_of(ddp(batch)).backward()
            optimizer.step()

The model stays as it is: stock DDP, ours, or torch's `fully_shard`. Once training has begun, nothing of a trace ends
it: what fails is warned of, once, and the loop goes on untraced.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import nn

from ddpexec.ddp.wrapper import DistributedDataParallel
from ddpexec.errors import OptionError
from ddpexec.tracing.loop import LoopHooks, LoopStamps
from ddpexec.tracing.session import Session, TraceSettings
from ddpsim.common.files import check_writable_folder

_tracing: list[Path] = []


def trace(folder: str | Path, **settings: int) -> Tracer:
    """Return what traces the training loop inside its `with`, into `folder`.

    Args:
        folder: gets `rank{N}.json.gz` and `run.json`, as `ddpexec run --out` writes them, of the newest stamped steps;
            earlier ones in folders inside; and `summary-rank{N}.jsonl`. Ranks may share it or not.
        settings: of `TraceSettings`: `every`, `warm_up`, `steps_per_file`, `files`, `interval`.

    Raises:
        OptionError: a setting that there is not, or that is no number.
        InputError: a folder that cannot be written.
    """
    known = TraceSettings.__dataclass_fields__
    if unknown := [name for name in settings if name not in known]:
        what = f"no setting {unknown[0]!r}"
        raise OptionError(what, place="ddpexec.trace", remedy=f"use one of {', '.join(known)}")
    return Tracer(Path(folder), TraceSettings(**settings))


class Tracer:
    """Traces one training loop from `__enter__` to `__exit__`.

    It begins with the first forward of a module that is trained: the outermost DDP or `fully_shard` in what is called.
    """

    def __init__(self, folder: Path, settings: TraceSettings) -> None:
        self._folder, self._settings = folder, settings
        self._hooks = LoopHooks(self._find, self._guard)
        self._session: Session | None = None
        self._failed = False

    def __enter__(self) -> Tracer:
        check_writable_folder(self._folder)
        if _tracing:
            what = f"{_tracing[0]} is being traced into"
            raise OptionError(what, place="ddpexec.trace", remedy="trace one loop at a time")
        _tracing.append(self._folder)
        self._hooks.install()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._hooks.remove()
        _tracing.clear()
        with self._guard():
            if self._session is not None:
                self._session.end(broken_off=kind is not None)
            elif kind is None and not self._failed:
                warnings.warn(
                    "ddpexec.trace: no module was trained inside it, so nothing is written; put the loop inside",
                    stacklevel=2,
                )

    def _find(self, module: nn.Module, inputs: tuple[Any, ...]) -> tuple[nn.Module, LoopStamps] | None:
        """Take the module for the one that is traced."""
        if isinstance(module, DistributedDataParallel) and module.schedule is not None:
            self._give_up("a module under a schedule of ddpexec is traced by `ddpexec run` alone")
            return None
        with self._guard():
            session = self._session = Session(self._folder, self._settings, module, inputs)
            # Hooks on what is compiled would be compiled with it.
            compiled = isinstance(getattr(module, "_orig_mod", None), nn.Module)
            return module if compiled else session.subject.module, session.iterations
        return None

    @contextlib.contextmanager
    def _guard(self) -> Iterator[None]:
        """Let no failure of the trace's own reach the loop."""
        try:
            yield
        except Exception as error:
            self._give_up(f"{type(error).__name__}: {error}")

    def _give_up(self, why: str) -> None:
        self._failed = True
        session, self._session = self._session, None
        with contextlib.suppress(Exception):
            self._hooks.remove()
            if session is not None:
                session.subject.detach()
                session.exchange.close()
        warnings.warn(f"ddpexec.trace stopped, and the training goes on: {why}", stacklevel=3)
