"""Lines of text that are no table: broken where they are longer than a screen is wide."""

from __future__ import annotations

import re
from textwrap import fill

LONGEST = 120
"""Characters of a line of text that is no table; chosen by hand, as the code's own."""

_UNIT = re.compile(r"(?<=\d) (?=(?:%|[mu]?s|[KMG]i?B(?:/s)?|nodes?)\b|%)")
_COMMAND = re.compile(r"`[^`]+`")
_KEPT = "\N{NO-BREAK SPACE}"


def break_line(text: str, indent: str = "  ") -> str:
    """Return a line in as many of `LONGEST` characters as it needs, those after the first behind `indent`.

    A number and its unit, and what stands between backquotes, stay in one line; words are never broken.
    """
    if len(text) <= LONGEST:
        return text
    whole = _COMMAND.sub(lambda command: command[0].replace(" ", _KEPT), _UNIT.sub(_KEPT, text))
    broken = fill(whole, LONGEST, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return broken.replace(_KEPT, " ")
