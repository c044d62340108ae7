"""What the button beside a `console` block copies: its commands, without prompts and output."""

from __future__ import annotations

import html
import re

BLOCK = re.compile(r"^[ ]*```console\n(.*?)^[ ]*```$", re.MULTILINE | re.DOTALL)
SHOWN = '<div class="language-console highlight"'


def commands(block: str) -> str:
    """Return the commands of a block, as a shell takes them."""
    lines = (line.strip("\n") for line in block.splitlines())
    return "\n".join(line.lstrip()[2:] for line in lines if line.lstrip()[:2] in ("$ ", "> "))


def with_commands(content: str, text: str) -> str:
    """Return the *content* of a page, made of *text*, with what each of its buttons copies."""
    said = iter([commands(found[1]) for found in BLOCK.finditer(text)])
    pieces = content.split(SHOWN)
    return pieces[0] + "".join(
        f'{SHOWN} data-copy="{html.escape(next(said))}"{piece}' for piece in pieces[1:]
    )
