"""Copy buttons of `console` blocks: they copy the commands without prompts and output."""

from __future__ import annotations

import html
import re

BLOCK = re.compile(r"^[ ]*```console\n(.*?)^[ ]*```$", re.MULTILINE | re.DOTALL)
SHOWN = '<div class="language-console highlight"'


def commands(block: str) -> str:
    """Return the commands of a block, ready to paste into a shell."""
    lines = (line.strip("\n") for line in block.splitlines())
    return "\n".join(line.lstrip()[2:] for line in lines if line.lstrip()[:2] in ("$ ", "> "))


def with_commands(content: str, text: str) -> str:
    """Return the HTML *content* of the page *text* with a `data-copy` attribute on each block."""
    copied = iter([commands(found[1]) for found in BLOCK.finditer(text)])
    pieces = content.split(SHOWN)
    return pieces[0] + "".join(
        f'{SHOWN} data-copy="{html.escape(next(copied))}"{piece}' for piece in pieces[1:]
    )
