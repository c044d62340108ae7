"""Explain what is malformed in a kubeconfig that the client library cannot load.

The texts contain no value of the file, since a kubeconfig has credentials.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyvgpu.kube import yaml_file

if TYPE_CHECKING:
    from collections.abc import Iterator

# The sections, each a list of objects with a name, and the object and texts of such an entry.
_SECTIONS = (
    ("clusters", "cluster", ("server", "certificate-authority", "certificate-authority-data")),
    ("contexts", "context", ("cluster", "user", "namespace")),
    ("users", "user", ("token", "tokenFile", "client-certificate", "client-certificate-data",
                       "client-key", "client-key-data")),
)  # fmt: skip
_KINDS = {
    list: "a list",
    dict: "an object",
    str: "text",
    bool: "true or false",
    type(None): "null",
}


def find(files: str) -> str | None:
    """Return the first malformed part of the kubeconfig *files*, paths separated by colons.

    None if each that exists has the structure of a kubeconfig. Raises DataError for a file that
    cannot be read or is not YAML.
    """
    return next((fault for document in _read(files) for fault in _faults(document)), None)


def existing(files: str) -> Iterator[Path]:
    """Yield the kubeconfig *files*, paths separated by colons, that exist."""
    for name in files.split(os.pathsep):
        if name and (path := Path(name).expanduser()).exists():
            yield path


def contexts(files: str) -> list[str]:
    """Return the names of the contexts of well-formed kubeconfig *files*."""
    return [entry["name"] for document in _read(files) for entry in document.get("contexts") or ()]


def _read(files: str) -> Iterator[Any]:
    """Yield the content of each of the *files* that exists; DataError if it is not YAML."""
    for path in existing(files):
        yield yaml_file.read(path, "kubeconfig")


def _faults(document: Any) -> Iterator[str]:
    """Yield the malformed parts of a kubeconfig."""
    if document is None:
        yield "is empty"
        return
    if not isinstance(document, dict):
        yield f"is {_kind(document)}, not an object"
        return
    for section, part, texts in _SECTIONS:
        entries = document.get(section) or []
        if not isinstance(entries, list):
            yield f"{section} is {_kind(entries)}, not a list"
            continue
        for at, entry in enumerate(entries):
            if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
                yield f"{section}[{at}] is not an object with a name"
            elif not isinstance(entry.get(part), dict):
                yield f"{section}[{at}].{part} is {_kind(entry.get(part))}, not an object"
            else:
                for text in texts:
                    if not isinstance(entry[part].get(text, ""), str):
                        given = _kind(entry[part][text])
                        yield f"{section}[{at}].{part}.{text} is {given}, not text"


def _kind(value: object) -> str:
    return _KINDS.get(type(value), "a number")
