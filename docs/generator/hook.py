"""mkdocs hooks: generated pages, navigation and link rewriting."""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "docs")]

from mkdocs.exceptions import PluginError  # noqa: E402
from mkdocs.structure import files as structure  # noqa: E402

from generator import copying, links, navigation, pages  # noqa: E402

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

LOST_ITEM = re.compile(r"<p>(?:(?!</p>).)*?^((?:\d+\.|-) .{,30})", re.MULTILINE | re.DOTALL)
ELSEWHERE = re.compile(r"""<(?:script|img|iframe|link)\b[^>]*\b(?:src|href)=["']?https?:[^>]*>""")
titles: dict[str, str] = {}  # page titles by path on the site


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages, and a page for each project file that a page links to."""
    texts = {page.src_uri: page.content_string for page in files.documentation_pages()}
    for name, text in pages.made(ROOT).items():
        texts[name] = text
        written = files.get_file_from_path(name)
        if written is not None:
            files.remove(written)
        files.append(structure.File.generated(config, name, content=text))
    for path in sorted(_sources(texts)):
        name = links.source_page(path)
        files.append(
            structure.File.generated(
                config,
                name,
                content=links.shown(ROOT, path),
                inclusion=structure.InclusionLevel.NOT_IN_NAV,
            )
        )
    titles.update((name, links.title(text)) for name, text in texts.items())
    config["nav"] = navigation.navigation(texts)
    return files


def on_page_markdown(text: str, /, page: Page, **_: Any) -> str:
    """Remove a page's navigation line, and rewrite its links to pages of the site."""
    name = page.file.src_uri
    if name.startswith("source/"):
        page.meta["search"] = {"exclude": True}
        return text
    page.meta["search"] = {"boost": navigation.boost(text)}
    titled = links.labelled(navigation.without_line(text), lambda to: _title(name, to))
    return links.rewritten(titled, lambda target: pages.target(ROOT, name, target))


def on_page_content(content: str, /, page: Page, **_: Any) -> str:
    """Make buttons copy commands only; refuse a list that Markdown joined to a paragraph."""
    found = LOST_ITEM.search(content)
    if found:
        raise PluginError(f"{page.file.src_uri}: '{found[1]}...': needs an empty line before it")
    return copying.with_commands(content, page.markdown or "")


def on_post_page(output: str, /, page: Page, **_: Any) -> str:
    """Refuse a page that loads anything from another host."""
    found = ELSEWHERE.search(output)
    if found:
        raise PluginError(f"{page.file.src_uri}: {found[0]}: pages must not load from other hosts")
    return output


def _title(name: str, link: str) -> str | None:
    """Return the title of the page that a link in page *name* leads to; None if it is no page."""
    to = pages.target(ROOT, name, link).partition("#")[0]
    return titles.get(posixpath.normpath(posixpath.join(posixpath.dirname(name), to)))


def _sources(texts: dict[str, str]) -> set[str]:
    """Return the project's files and folders that pages link to and that are not pages."""
    found: set[str] = set()
    for name, text in texts.items():

        def resolve(target: str, name: str = name) -> str:
            path = pages.source(ROOT, name, target)
            if path is not None:
                found.add(path)
                if (ROOT / path).is_dir():
                    found.update(
                        f"{path}/{child.name}"
                        for child in (ROOT / path).iterdir()
                        if child.is_file()
                    )
            return target

        links.rewritten(text, resolve)
    return found
