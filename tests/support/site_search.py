"""Search of the built site, with the results that its pages show in a browser.

The theme's script builds a lunr index of `search/search_index.json`: it ignores field lengths,
splits words at the configured separator, takes each word of a query as a prefix, prefers pages to
their sections and results that have all words, and groups sections by page.
"""

from __future__ import annotations

import html
import json
import re
from typing import TYPE_CHECKING, Any

from lunr import builder, stop_word_filter

if TYPE_CHECKING:
    from pathlib import Path

TAG = re.compile(r"<[^>]*>")


class SiteSearch:
    """The search box of a built site."""

    def __init__(self, site: Path) -> None:
        found = json.loads((site / "search" / "search_index.json").read_text())
        config = found["config"]
        assert config["lang"] == ["en"]
        assert config["pipeline"] == ["stopWordFilter"]  # no stemmer: words are prefixes
        self._separator = re.compile(config["separator"])
        making = builder.Builder()
        making.b(0)
        making.pipeline.add(stop_word_filter.stop_word_filter)
        making.ref("location")
        for name, options in config["fields"].items():
            making.field(name, boost=options["boost"], extractor=self._extractor(name))
        for document in found["docs"]:
            making.add(document, {"boost": document.get("boost", 1)})
        self._index = making.build()

    def pages(self, typed: str) -> list[str]:
        """Return the pages that are shown for a query, the best first, such as `run.html`."""
        terms = self._words(typed)
        ranked = []
        for result in self._index.search(" ".join(f"{term}*" for term in terms)):
            matched = result["match_data"].metadata
            complete = sum(any(word.startswith(term) for word in matched) for term in terms)
            is_page = "#" not in result["ref"]
            boost = 1 + (is_page + complete / len(terms)) ** 2
            ranked.append((-result["score"] * boost, result["ref"].partition("#")[0]))
        return list(dict.fromkeys(page for _, page in sorted(ranked, key=lambda row: row[0])))

    def _extractor(self, name: str) -> Any:
        return lambda document: self._words(" ".join(_texts(document.get(name, ""))))

    def _words(self, text: str) -> list[str]:
        plain = html.unescape(TAG.sub(" ", text))
        return [word for word in self._separator.split(plain.lower()) if word]


def _texts(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value
