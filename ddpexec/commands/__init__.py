"""The commands of `python -m ddpexec`, by name; torch is imported inside a command, never for `--help`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ddpexec.commands.capture import capture

COMMANDS: Mapping[str, Callable[..., None]] = {"capture": capture}

__all__ = ["COMMANDS"]
