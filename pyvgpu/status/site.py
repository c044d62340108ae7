"""HTTP routes of the status page: HTML, CSS, script, icon, and the JSON document.

The page is the same for a node and for a cluster; the document tells which. Nothing is loaded from
elsewhere, and a Content-Security-Policy forbids it. All URLs are relative, so that the page works
behind any proxy.
"""

from __future__ import annotations

import functools
import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyvgpu.http import endpoints, http_messages

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Document = dict[str, Any]

PATH = "/status"
FILES = {  # path -> file, content type
    PATH: ("page.html", "text/html; charset=utf-8"),
    f"{PATH}.css": ("page.css", "text/css; charset=utf-8"),
    f"{PATH}.js": ("page.js", "text/javascript; charset=utf-8"),
    f"{PATH}.svg": ("icon.svg", "image/svg+xml"),
}
NUMBERS = f"{PATH}.json"

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
FIELDS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",  # revalidated by ETag
}
_FOLDER = Path(__file__).parent


def routes(
    document: Callable[[endpoints.HttpRequest], http_messages.HttpResponse],
) -> dict[str, endpoints.Route]:
    """Return the routes by path; *document* returns the JSON document."""
    found: dict[str, endpoints.Route] = {"/": _elsewhere, NUMBERS: document}
    for path, (name, kind) in FILES.items():
        found[path] = functools.partial(_file, name, kind)
    return found


def answer(asked: endpoints.HttpRequest, document: Document) -> http_messages.HttpResponse:
    """Return *document* as a response, or 304 if the client has it already."""
    content = json.dumps(document, separators=(",", ":")).encode()
    return tagged(asked, content, endpoints.JSON)


def refusal(
    code: int, why: str, more: Mapping[str, str] | None = None
) -> http_messages.HttpResponse:
    """Return an error as a JSON document."""
    content = json.dumps({"error": why}).encode()
    return http_messages.HttpResponse(content, endpoints.JSON, code, {**FIELDS, **(more or {})})


def tagged(asked: endpoints.HttpRequest, content: bytes, kind: str) -> http_messages.HttpResponse:
    """Return *content* with an ETag, or 304 if the client has it already."""
    tag = f'"{hashlib.blake2b(content, digest_size=16).hexdigest()}"'
    fields = {**FIELDS, "ETag": tag}
    known = (word.strip() for word in asked.fields.get("if-none-match", "").split(","))
    if any(held_tag in ("*", tag, f"W/{tag}") for held_tag in known):
        return http_messages.HttpResponse(b"", kind, 304, fields)
    return http_messages.HttpResponse(content, kind, 200, fields)


def content(name: str) -> bytes:
    """Return one of the files of the page."""
    return (_FOLDER / name).read_bytes()


def _file(name: str, kind: str, asked: endpoints.HttpRequest) -> http_messages.HttpResponse:
    return tagged(asked, content(name), kind)


def _elsewhere(_asked: endpoints.HttpRequest) -> http_messages.HttpResponse:
    to = PATH.removeprefix("/")
    return http_messages.HttpResponse(b"", code=302, fields={**FIELDS, "Location": to})
