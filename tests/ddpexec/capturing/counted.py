"""Operators of shipped models, each counted once in a process: a second of a processor for the larger ones."""

from __future__ import annotations

import functools

from ddpexec.capturing.shapes import model_shape

counted = functools.cache(model_shape)
