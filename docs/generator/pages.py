"""The pages of the site that no file of docs/ is: those from other files, and those from code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from generator import commands, links, measures, messages, vocabulary

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# Files beside docs/ that are pages: where they stand on the site, and in its navigation.
BESIDE = {
    "README.md": ("index.md", "Get started, 0"),
    "CONTRIBUTING.md": ("contributing.md", "Contributing, 0"),
    "CHANGELOG.md": ("changelog.md", "More, 900"),
}
# Pages that are made from code, in the order of the navigation: what makes their text.
REFERENCE: dict[str, Callable[[Path], str]] = {
    "reference/commands.md": commands.text,
    "reference/names.md": vocabulary.text,
    "reference/metrics.md": measures.text,
    "reference/messages.md": messages.text,
}


def made(root: Path) -> dict[str, str]:
    """Return the texts of all pages that are made, by their paths on the site."""
    found = {
        name: f"<!-- nav: Reference, {number} -->\n\n{make(root)}"
        for number, (name, make) in enumerate(REFERENCE.items())
    }
    for file, (name, place) in BESIDE.items():
        found[name] = f"<!-- nav: {place} -->\n\n{(root / file).read_text()}"
    return found


def origin(name: str) -> str:
    """Return the path in the project of a page of the site."""
    for file, (page, _) in BESIDE.items():
        if page == name:
            return file
    return f"docs/{name}"


def source(root: Path, name: str, target: str) -> str | None:
    """Return the file or folder that a link of the page *name* leads to, None if it is a page."""
    if not links.inside(target):
        return None
    folder = origin(name).rpartition("/")[0]
    path, _ = links.resolved(folder, target)
    if path in BESIDE or path.startswith("docs/") or not (root / path).exists():
        return None
    return path


def target(root: Path, name: str, link: str) -> str:
    """Return where a link of the page *name* leads on the site."""
    if not links.inside(link):
        return link
    path, anchor = links.resolved(origin(name).rpartition("/")[0], link)
    if path in BESIDE:
        to = BESIDE[path][0]
    elif path.startswith("docs/"):
        to = path.removeprefix("docs/")
    elif source(root, name, link) is not None:
        to = links.source_page(path)
    else:
        return link
    return links.relative(name, to) + anchor
