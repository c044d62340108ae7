"""Read YAML (or JSON) files that an administrator writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyvgpu import errors, input_files

if TYPE_CHECKING:
    from pathlib import Path


def read(path: Path, option: str) -> Any:
    """Return the content of a file; DataError, which names *option*, if that fails."""
    text = input_files.read_file(path, f"{option} {path}", "must be a file in YAML or JSON")
    return parse(text, str(path))


def parse(text: str, name: str) -> Any:
    """Parse *text*; DataError with *name* if it is not YAML."""
    with errors.needing("PyYAML", "kubernetes"):
        import yaml
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as exc:
        raise errors.DataError(f"{name}: is not YAML: {' '.join(str(exc).split())}") from exc
