"""How large the project is: `python -m studies.size [--json]`.

Lines of code are those that have a token which is no comment and no docstring; of tests all lines are counted, as
`wc -l` does, and of documentation words, as `wc -w` does.
"""

from __future__ import annotations

import ast
import io
import json
import sys
import tokenize
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_EMPTY = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
    tokenize.ENCODING,
}  # fmt: skip


def code_lines(text: str) -> int:
    """Return the lines of code in a module's text, without docstrings, comments and blanks.

    >>> code_lines(chr(34) * 3 + "Doc." + chr(34) * 3 + "\\n\\nx = (1,\\n     2)  # two\\n# none\\n")
    2
    """
    told: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        # A string that stands by itself, as a docstring or under a constant, is documentation.
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            told.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    lines = {line for token in tokens if token.type not in _EMPTY for line in range(token.start[0], token.end[0] + 1)}
    return len(lines - told)


def sizes() -> dict[str, int]:
    """Return the lines of code of product and studies, the lines of tests, and the words of documentation."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    code = {name: _sum(code_lines(path.read_text()) for path in _modules(name)) for name in ("ddpsim", "ddpexec")}
    return {
        **{f"{name}_code_lines": lines for name, lines in code.items()},
        "product_code_lines": sum(code.values()),
        "tests_lines": _sum(path.read_text().count("\n") for path in _modules("tests")),
        "studies_lines": _sum(path.read_text().count("\n") for path in _modules("studies")),
        "documentation_words": _sum(len(path.read_text().split()) for path in pages),
    }


def _modules(folder: str) -> list[Path]:
    return [path for path in (ROOT / folder).rglob("*.py") if "__pycache__" not in path.parts]


def _sum(numbers: Iterable[int]) -> int:
    return sum(numbers)


if __name__ == "__main__":
    found = sizes()
    print(json.dumps(found) if "--json" in sys.argv[1:] else "\n".join(f"{n:8,} {what}" for what, n in found.items()))
