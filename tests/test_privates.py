"""Tests go through what users see: no test names what a module of the packages keeps to itself."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
OFFERED = frozenset(
    {
        "_ddp_graph_static",
        "_repr_html_",
        "_apply_optimizer_in_backward",
        "_forward_hooks",
        "_forward_pre_hooks",
        "_get_data_parallel_params",
        "_get_ddp_logging_data",
        "_get_local_used_map",
        "_get_zeros_like_grad_buckets",
        "_post_accumulate_grad_hooks",
        "_register_buffer_comm_hook",
        "_register_builtin_comm_hook",
        "_register_fused_optim",
        "_set_ddp_runtime_logging_sample_rate",
        "_set_params_and_buffers_to_ignore_for_model",
        "_set_static_graph",
        "_update_process_group",
    }
)
"""Names of IPython's and torch's own, which ours offers or sets as they do."""
BY_NAME = {"setattr", "getattr", "delattr", "hasattr", "patch", "object", "attrgetter", "setitem"}
"""Functions that take a name as a text."""


DEFINED = re.compile(r"^(?:\s*(?:async )?(?:def|class) |[^#=]*?self\.|)(_\w+)\b", re.MULTILINE)
"""A definition, or an assignment to a module's name or an object's."""


WORD = re.compile(r"\b_\w+")


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_" and name not in OFFERED


def kept_names() -> set[str]:
    """Return all underscore names that the packages define: modules, functions, classes, constants, attributes."""
    paths = [path for package in ("ddpsim", "ddpexec") for path in (ROOT / package).rglob("*.py")]
    found = {name for path in paths for name in (path.stem, *DEFINED.findall(path.read_text()))}
    return {name for name in found if is_private(name)}


def own_names(tree: ast.Module) -> set[str]:
    """Return what a test's own classes and functions are called and keep."""
    found = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            found.add(node.attr)
    return found


def used_privates(source: str, kept: set[str]) -> Iterator[tuple[int, str]]:
    """Yield line and name of each private of the packages that a test imports, reaches into or patches."""
    if kept.isdisjoint(WORD.findall(source)):
        return
    tree = ast.parse(source)
    foreign = kept - own_names(tree)
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ("ddpsim", "ddpexec"):
            parts = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
            names = [part for part in parts if is_private(part)]
        elif isinstance(node, ast.Attribute):
            torchs = ast.unparse(node.value).split(".")[0] in ("torch", "dist")
            names = [node.attr] if node.attr in foreign and not torchs else []
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in BY_NAME:
            texts = [each.value for each in node.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
            texts = [text for text in texts if not text.startswith("torch.")]
            names = [part for text in texts for part in text.split(".") if part in foreign]
        yield from ((node.lineno, name) for name in names)


def test_no_test_reaches_into_the_packages_privates() -> None:
    kept = kept_names()
    assert len(kept) > 1000
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for line, name in used_privates(path.read_text(), kept)
    ]
    assert not found, "\n".join(["go through what users see, or give it a public name:", *found])


def test_imports_attributes_and_patched_texts_are_found() -> None:
    source = """
from ddpsim.trace.json import _read
class Own:
    def __init__(self):
        self._kept = 0
made._watch.begin()
monkeypatch.setattr("ddpsim.cli.calibrate._MOST_ROWS", 6)
mock.patch.object(run, "_step")
made._kept, ddp._set_static_graph(), dist._step, mock.patch("torch.distributed._step")
"""
    kept = {"_read", "_watch", "_MOST_ROWS", "_step", "_kept"}
    assert [name for _, name in sorted(used_privates(source, kept))] == ["_read", "_watch", "_MOST_ROWS", "_step"]
