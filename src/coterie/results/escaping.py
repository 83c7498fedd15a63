"""Names on their way to where they are shown. A domain is called what a folder is called, a method what its author likes, and a
ledger may be a stranger's: in a terminal, in LaTeX, in Markdown and in a spreadsheet they are text and nothing else.
(The page has its own way: its data are JSON in which no tag can end, and it writes text nodes.)
"""

from __future__ import annotations

import re

__all__ = ["cell", "latex", "markdown", "plain"]

UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters: escapes that a terminal obeys, marks that turn the direction of reading, half characters. Not tab and line end."""
TEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "%": r"\%",
    "_": r"\_",
    "&": r"\&",
    "#": r"\#",
    "$": r"\$",
    "±": r"$\pm$",
    "×": r"$\times$",
    "∞": r"$\infty$",
    ">": "$>$",
    "<": "$<$",
}
MARKDOWN = {"|": r"\|", "<": "&lt;", "\n": " "}


def plain(text: object) -> str:
    r"""A text for a terminal: what cannot be seen is spelt out.

    >>> plain("fed\x1b[31mavg")
    'fed\\x1b[31mavg'
    """
    return UNSEEN.sub(lambda found: found[0].encode("unicode_escape", "surrogatepass").decode(), str(text))


def latex(text: str) -> str:
    r"""A text for a LaTeX table, of one line.

    >>> latex("50% {of} \\input")
    '50\\% \\{of\\} \\textbackslash{}input'
    """
    return re.sub("|".join(map(re.escape, TEX)), lambda found: TEX[found[0]], " ".join(plain(text).split("\n")))


def markdown(text: str) -> str:
    r"""A text for a Markdown table, of one line.

    >>> markdown("a|b <script>")
    'a\\|b &lt;script>'
    """
    return re.sub(r"[|<\n]", lambda found: MARKDOWN[found[0]], plain(text))


def cell(value: object) -> object:
    """A value for a CSV: a text that a spreadsheet would take for a formula is marked as text.

    >>> cell("=1+1"), cell("fedavg"), cell(-1.5), cell("-")
    ("'=1+1", 'fedavg', -1.5, '-')
    """
    return f"'{value}" if isinstance(value, str) and len(value) > 1 and value[0] in ("=", "+", "-", "@", "\t", "\r") else value
