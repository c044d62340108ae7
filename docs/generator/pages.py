"""Pages of the site that are not files of docs/: copies of other files, and generated pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from generator import commands, links, measures, messages, vocabulary

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# Files outside docs/ that are pages: their path on the site, and their place in its navigation.
BESIDE = {
    "README.md": ("index.md", "Get started, 0"),
    "CONTRIBUTING.md": ("contributing.md", "Contributing, 0"),
    "CHANGELOG.md": ("changelog.md", "More, 900"),
}
# Pages generated from code, in the order of the navigation, and the function that generates each.
# `make reference` writes them into docs/, for readers of the repository; the site has them afresh.
REFERENCE: dict[str, Callable[[Path], str]] = {
    "reference/commands.md": commands.text,
    "reference/names.md": vocabulary.text,
    "reference/metrics.md": measures.text,
    "reference/messages.md": messages.text,
}


def made(root: Path) -> dict[str, str]:
    """Return the texts of all these pages, by path on the site."""
    found = reference(root)
    for file, (name, place) in BESIDE.items():
        found[name] = f"<!-- nav: {place} -->\n\n{(root / file).read_text()}"
    return found


def reference(root: Path) -> dict[str, str]:
    """Return the texts of the generated pages, by path below docs/."""
    return {
        name: f"<!-- nav: Reference, {number} -->\n\n{make(root)}"
        for number, (name, make) in enumerate(REFERENCE.items())
    }


def origin(name: str) -> str:
    """Return the path in the repository of a page of the site."""
    for file, (page, _) in BESIDE.items():
        if page == name:
            return file
    return f"docs/{name}"


def source(root: Path, name: str, target: str) -> str | None:
    """Return the file or folder that a link in page *name* leads to; None if it is a page."""
    if not links.inside(target):
        return None
    folder = origin(name).rpartition("/")[0]
    path, _ = links.resolved(folder, target)
    if path in BESIDE or path.startswith("docs/") or not (root / path).exists():
        return None
    return path


def target(root: Path, name: str, link: str) -> str:
    """Return the target on the site of a link in page *name*."""
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
