"""Read YAML (or JSON) files that an administrator writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyvgpu import errors

if TYPE_CHECKING:
    from pathlib import Path


def read(path: Path, option: str) -> Any:
    """Return the content of a file; DataError, which names *option*, if that fails."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise errors.DataError(
            f"{option} {path}: {errors.reason_of(exc)}; must be a file in YAML or JSON"
        ) from exc
    return parse(text, str(path))


def parse(text: str, name: str) -> Any:
    """Parse *text*; DataError with *name* if it is not YAML."""
    with errors.needing("PyYAML", "kubernetes"):
        import yaml
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as exc:
        raise errors.DataError(f"{name}: is not YAML: {' '.join(str(exc).split())}") from exc
