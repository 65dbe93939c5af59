"""Small changes of a module's meaning: operators, comparisons, constants and conditions, one at a time."""

from __future__ import annotations

import ast
import copy
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SWAPS: dict[type[ast.AST], type[Any]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
"""What stands for what."""


@dataclass(frozen=True, slots=True, order=True)
class Mutant:
    """One change of one module.

    Attributes:
        module: path from the repository's root.
        number: of the node that changes, in the order of `ast.walk`.
        line: where it stands.
        change: in words.
    """

    module: str
    number: int
    line: int
    change: str

    def __str__(self) -> str:
        return f"{self.module}:{self.line} {self.change} (node {self.number})"


def change_of(node: ast.AST) -> str | None:
    """Return what would change at a node, in words; None: nothing."""
    if isinstance(node, ast.BinOp | ast.BoolOp | ast.AugAssign) and type(node.op) in SWAPS:
        return f"{type(node.op).__name__} to {SWAPS[type(node.op)].__name__}"
    if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
        return f"{type(node.ops[0]).__name__} to {SWAPS[type(node.ops[0])].__name__}"
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        return f"{node.value!r} to {not node.value!r}"
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return f"{node.value!r} to {node.value + 1!r}"
    if isinstance(node, ast.If | ast.IfExp | ast.While):
        return "the condition is turned round"
    if isinstance(node, ast.Return) and node.value is not None and not isinstance(node.value, ast.Constant):
        return "returns None"
    return None


def mutants_of(module: str, source: str) -> Iterator[Mutant]:
    """Yield every mutant of a module, but none of annotations."""
    tree = ast.parse(source)
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        for part in (getattr(node, "annotation", None), getattr(node, "returns", None))
        if isinstance(part, ast.AST)
        for inner in ast.walk(part)
    }
    for number, node in enumerate(ast.walk(tree)):
        if id(node) not in skipped and (change := change_of(node)):
            yield Mutant(module, number, getattr(node, "lineno", 0), change)


def mutated(source: str, mutant: Mutant) -> str:
    """Return the module's text with the change, without its comments."""
    tree = copy.deepcopy(ast.parse(source))
    node = next(node for number, node in enumerate(ast.walk(tree)) if number == mutant.number)
    match node:
        case ast.BinOp() | ast.BoolOp() | ast.AugAssign():
            node.op = SWAPS[type(node.op)]()
        case ast.Compare():
            node.ops[0] = SWAPS[type(node.ops[0])]()
        case ast.Constant(value=bool()):
            node.value = not node.value
        case ast.Constant(value=int() | float() as number):
            node.value = number + 1
        case ast.If() | ast.IfExp() | ast.While():
            node.test = ast.UnaryOp(ast.Not(), node.test)
        case ast.Return():
            node.value = ast.Constant(None)
    return ast.unparse(ast.fix_missing_locations(tree))


def drawn(root: Path, rooms: list[str], count: int, seed: int) -> list[Mutant]:
    """Return `count` mutants of the rooms' modules, each node as likely as any other, the same for a seed."""
    every = [
        mutant
        for room in rooms
        for path in sorted((root / room).rglob("*.py"))
        for mutant in mutants_of(str(path.relative_to(root)), path.read_text())
    ]
    return sorted(random.Random(seed).sample(every, count))
