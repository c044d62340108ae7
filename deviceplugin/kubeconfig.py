"""A kubeconfig: where an API server is and as whom to speak with it, as kubectl reads it.

JSON needs nothing; YAML needs PyYAML, which is loaded for it alone. What would run programs or
leave out checks is refused rather than passed over.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import json
from typing import TYPE_CHECKING, Any

from pyvgpu import errors

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_EXAMPLE = "such as `kubectl config view --raw --minify` gives"
_ALSO_IN_JSON = "pip install 'pyvgpu[node]', or write it as JSON: --output json"
_NOT_FOLLOWED = ("exec", "auth-provider", "username", "password")  # ways to say who one is
_UNKNOWN = ("insecure-skip-tls-verify", "proxy-url", "tls-server-name")


@dataclasses.dataclass(frozen=True, slots=True)
class Access:
    """How to reach an API server."""

    server: str  # its URL
    authority: str = ""  # PEM of who signed its certificate; empty: whom this machine trusts
    certificate: bytes = b""  # PEM of ours, and its key; empty: none
    token: str = ""
    token_file: Path | None = None  # read anew for each request, since somebody renews it


def read(path: Path) -> Access:
    """Return what the kubeconfig *path* says; DataError with the rule if that is not one."""
    try:
        document = _document(path.read_bytes())
        cluster, user = _current(document)
        for key in _UNKNOWN:
            if cluster.get(key):
                raise ValueError(f"{key} is not followed")
        for key in _NOT_FOLLOWED:
            if user.get(key):
                raise ValueError(f"{key} is not followed: give the user a token or a certificate")
        return Access(
            str(cluster["server"]),
            _content(cluster, "certificate-authority", path.parent).decode(),
            _pem(user, path.parent),
            str(user.get("token") or ""),
            path.parent / user["tokenFile"] if user.get("tokenFile") else None,
        )
    except OSError as exc:
        where = exc.filename or path
        raise errors.DataError(f"{path}: {where} cannot be read: {exc.strerror}") from exc
    except KeyError as exc:
        raise errors.DataError(f"{path}: has no {exc}; must be a kubeconfig, {_EXAMPLE}") from exc
    except (ValueError, TypeError, AttributeError, RecursionError) as exc:
        raise errors.DataError(f"{path}: {exc}; must be a kubeconfig, {_EXAMPLE}") from exc


def _document(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        pass
    try:
        import yaml
    except ImportError as exc:
        raise ValueError(f"is no JSON, and PyYAML is not installed: {_ALSO_IN_JSON}") from exc
    try:
        return yaml.safe_load(content)
    except yaml.YAMLError as exc:
        raise ValueError(f"is neither JSON nor YAML: {' '.join(str(exc).split())}") from exc


def _current(document: Any) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the cluster and the user of the current context; where none is named, the first."""
    if not isinstance(document, dict):
        raise TypeError(f"holds {type(document).__name__}")
    named = document.get("current-context")
    if not named:
        return document["clusters"][0]["cluster"], document["users"][0].get("user") or {}
    context = _named(document, "context", named)
    cluster = _named(document, "cluster", context["cluster"])
    return cluster, _named(document, "user", context["user"]) if context.get("user") else {}


def _named(document: Mapping[str, Any], kind: str, name: str) -> Mapping[str, Any]:
    for each in document.get(f"{kind}s") or ():
        if each["name"] == name:
            return each.get(kind) or {}
    raise ValueError(f"names a {kind} {name!r}, and has none of that name")


def _pem(user: Mapping[str, Any], folder: Path) -> bytes:
    certificate = _content(user, "client-certificate", folder)
    key = _content(user, "client-key", folder)
    if bool(certificate) != bool(key):
        raise ValueError("client-certificate and client-key go together")
    return certificate.rstrip(b"\n") + b"\n" + key if key else b""


def _content(found: Mapping[str, Any], key: str, folder: Path) -> bytes:
    """Return what stands under <key>-data, or else in the file under <key>; empty if neither."""
    if found.get(f"{key}-data"):
        try:
            return base64.b64decode(found[f"{key}-data"], validate=True)
        except binascii.Error as exc:
            raise ValueError(f"{key}-data is no base64: {exc}") from exc
    return (folder / found[key]).read_bytes() if found.get(key) else b""
