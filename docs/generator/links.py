"""Link rewriting: links to source files lead to generated pages that show those files.

In the repository a page links to a file by its relative path, such as
`../csrc/shim/cuda/reviewed.def`. On the site the page `source/csrc/shim/cuda/reviewed.def.md` has
its content.
"""

from __future__ import annotations

import os.path
import posixpath
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LINK = re.compile(r"(?P<before>!?\[(?:[^\]\\]|\\.)*\]\()(?P<target>[^)\s]+)(?P<after>\))")
CALLED = re.compile(r"\[(?P<label>[\w/-]+\.md)\]\((?P<target>[^)\s]+)\)")
OUTSIDE = re.compile(r"[a-z]+:")
FENCE = re.compile(r"^(?P<fence> *`{3,})[^\n]*\n.*?^(?P=fence)`*$", re.MULTILINE | re.DOTALL)
LONGEST = 200_000  # characters shown of a file
LANGUAGES = {
    ".c": "c",
    ".h": "c",
    ".def": "c",
    ".py": "python",
    ".sh": "sh",
    ".toml": "toml",
    ".yaml": "yaml",
    ".yml": "yaml",
}


def rewritten(text: str, change: Callable[[str], str]) -> str:
    """Return *text* with the target of each link changed, except in fenced blocks."""

    def changed(found: re.Match[str]) -> str:
        return found["before"] + change(found["target"]) + found["after"]

    return _outside_fences(text, LINK, changed)


def labelled(text: str, title: Callable[[str], str | None]) -> str:
    """Return *text* with page titles as labels of the links that are labelled by file name."""

    def changed(found: re.Match[str]) -> str:
        return f"[{title(found['target']) or found['label']}]({found['target']})"

    return _outside_fences(text, CALLED, changed)


def title(text: str) -> str:
    """Return the title of a page: its first heading."""
    found = re.search(r"^# (.+)$", text, re.MULTILINE)
    return found[1] if found else ""


def inside(target: str) -> bool:
    """Return whether a link leads to a file, not to another host or an anchor of its own page."""
    return not OUTSIDE.match(target) and not target.startswith("#")


def resolved(folder: str, target: str) -> tuple[str, str]:
    """Return the path of a link from a file in *folder*, and its anchor (`#...`).

    Both paths are relative to the repository, such as `docs` and `csrc/shim/shim.c`.
    """
    path, mark, anchor = target.partition("#")
    return posixpath.normpath(posixpath.join(folder, path)), mark + anchor


def relative(page: str, to: str) -> str:
    """Return the link from one page of the site to another."""
    return os.path.relpath(to, posixpath.dirname(page) or ".")


def source_page(path: str) -> str:
    """Return the page of the site that shows a file or a folder of the project."""
    return f"source/{path}.md"


def shown(root: Path, path: str) -> str:
    """Return the text of the page that shows the file or folder *path* of the project."""
    there = root / path
    if there.is_dir():
        names = sorted(child.name for child in there.iterdir() if child.is_file())
        return f"# {path}/\n\n" + "".join(
            f"- [{name}]({posixpath.basename(path)}/{name}.md)\n" for name in names
        )
    text = there.read_text()[:LONGEST]
    longest = max((len(ticks) for ticks in re.findall(r"`+", text)), default=0)
    fence = "`" * max(longest + 1, 3)
    return f"# {path}\n\n{fence}{LANGUAGES.get(there.suffix, 'text')}\n{text}\n{fence}\n"


def _outside_fences(
    text: str, pattern: re.Pattern[str], changed: Callable[[re.Match[str]], str]
) -> str:
    parts, end = [], 0
    for block in FENCE.finditer(text):
        parts += [pattern.sub(changed, text[end : block.start()]), block[0]]
        end = block.end()
    return "".join([*parts, pattern.sub(changed, text[end:])])
