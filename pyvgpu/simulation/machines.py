"""Specification of a simulated machine: a list of GPU models, or a machine file.

``h100:2,t4`` names models, which behave as law.Law defines by default;
``h100:mig=3g.40gb+3g.40gb`` is a device in MIG mode, with the instances that it has at first. A
machine file describes a measured machine; `pyvgpu calibrate` writes such files, and users may
write their own. Every option that takes the name of a simulated machine also takes the path of
such a file.

    pyvgpu-simulated-machine 1
    # comments and empty lines are ignored
    machine=h200
    slice_ns=2500000
    context_bytes=545259520
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING

from pyvgpu import errors, models
from pyvgpu.simulation import law as laws
from pyvgpu.simulation import mig

if TYPE_CHECKING:
    from collections.abc import Mapping

SUFFIX = ".machine"
MAXIMUM_DEVICES = 16
EXAMPLE = "h100, h100:2, h100,t4 or h100:mig=3g.40gb+3g.40gb"
_HEADING = "pyvgpu-simulated-machine 1"
_MACHINE = "machine"
_MIG = "mig"


class MachineFileError(errors.DataError):
    """A machine file is not valid."""


# Properties of the devices that a file may override; minimum and maximum.
DEVICE_KEYS = {
    "memory_bytes": (1 << 30, 1 << 44),
    "reserved_bytes": (0, 1 << 40),
    "context_bytes": (0, 1 << 40),
    "sm_count": (1, 4096),
}
LAW_KEYS = tuple(field.name for field in dataclasses.fields(laws.Law))


@dataclasses.dataclass(frozen=True, slots=True)
class Description:
    """A simulated machine to create; only one from a file has its own law and figures."""

    models: tuple[models.Model, ...]
    law: laws.Law | None = None
    figures: tuple[tuple[str, int], ...] = ()  # keys of DEVICE_KEYS, for each device
    layouts: tuple[str | None, ...] = ()  # MIG instances of each device; None: MIG is off


def describe(spec: str) -> Description:
    """Return the machine of *spec*: a list of models, or the path of a machine file."""
    if is_file(spec):
        return read(Path(spec))
    found = _models(spec)
    return Description(tuple(model for model, _ in found), layouts=tuple(mig for _, mig in found))


def parse_machine(spec: str) -> tuple[models.Model, ...]:
    """Return the models of *spec*, one per device, in order.

    ``h100`` is one device, ``h100:2`` two alike, ``h100,t4`` one of each,
    ``h100:mig=3g.40gb+3g.40gb`` one in MIG mode with two instances; or a machine file.
    """
    return describe(spec).models


def is_file(spec: str) -> bool:
    """Return whether *spec* is the path of a machine file, not a list of models."""
    return spec.endswith(SUFFIX) or "/" in spec


def read(path: Path) -> Description:
    """Read the machine file at *path*."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as exc:
        raise errors.UsageError(
            f"machine {str(path)!r}: no such file; `pyvgpu calibrate RECORD --write "
            f"{path.stem or 'h100'}{SUFFIX}` makes one"
        ) from exc
    except UnicodeDecodeError as exc:
        raise MachineFileError(f"{path}: its first line must be {_HEADING!r}") from exc
    except OSError as exc:
        raise errors.of_files(f"machine {str(path)!r}: cannot be read", exc) from exc
    return _parse(path, text)


def write(path: Path, machine: str, values: Mapping[str, str], remarks: tuple[str, ...]) -> None:
    """Write a machine file at *path* atomically, after validating it."""
    lines = [
        _HEADING,
        *(f"# {remark}" for remark in remarks),
        f"{_MACHINE}={machine}",
        *(f"{key}={value}" for key, value in values.items()),
    ]
    text = "\n".join([*lines, ""])
    _parse(path, text)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with draft.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as exc:
        raise errors.of_files(f"{path}: cannot be written", exc) from exc
    finally:
        with contextlib.suppress(OSError):  # its folder may be none
            draft.unlink()


def _parse(path: Path, text: str) -> Description:
    lines = text.splitlines()
    if not lines or lines[0] != _HEADING:
        raise MachineFileError(f"{path}: its first line must be {_HEADING!r}")
    found: dict[str, str] = {}
    for number, line in enumerate(lines[1:], 2):
        if not line.strip() or line.startswith("#"):
            continue
        key, equals, value = (part.strip() for part in line.partition("="))
        if not equals or key not in (_MACHINE, *LAW_KEYS, *DEVICE_KEYS) or key in found:
            raise MachineFileError(
                f"{path}:{number}: {line!r}: must be KEY=VALUE, where KEY is one of {_MACHINE}, "
                f"{', '.join((*LAW_KEYS, *DEVICE_KEYS))}, each once, such as {_MACHINE}=h100"
            )
        found[key] = value
    named = found.pop(_MACHINE, "")
    if not named or is_file(named):
        raise MachineFileError(f"{path}: {_MACHINE}={named}: must name models, such as h100")
    try:
        figures = tuple(
            (key, _whole(key, value)) for key, value in found.items() if key in DEVICE_KEYS
        )
        listed = _models(named)
        layouts = tuple(layout for _, layout in listed)
        return Description(
            tuple(model for model, _ in listed), laws.parse(found), figures, layouts
        )
    except errors.UsageError as exc:
        raise MachineFileError(f"{path}: {exc}") from exc


def _whole(key: str, text: str) -> int:
    least, most = DEVICE_KEYS[key]
    value = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else -1
    if not least <= value <= most:
        raise errors.UsageError(
            f"{key}={text}: must be a whole number from {least} to {most}, such as {max(1, least)}"
        )
    return value


def _models(spec: str) -> tuple[tuple[models.Model, str | None], ...]:
    """Return the model of each device, and the layout of its MIG instances or None."""
    found: list[tuple[models.Model, str | None]] = []
    for part in spec.split(","):
        part, marked, layout = part.partition(f":{_MIG}=")
        key, colon, count = (piece.strip() for piece in part.partition(":"))
        model = models.BY_KEY.get(key.lower())
        if model is None:
            known = ", ".join(model.key for model in models.MODELS)
            raise errors.UsageError(
                f"machine {spec!r}: unknown model {key!r}; the models are {known}, and a valid "
                f"machine is {EXAMPLE}, or a file that describes one, such as h100{SUFFIX}"
            )
        if colon and not (count.isascii() and count.isdigit() and 1 <= len(count) <= 4):
            raise errors.UsageError(
                f"machine {spec!r}: the number of devices is {count!r}; it must be a whole number "
                f"from 1 to {MAXIMUM_DEVICES}, such as {model.key}:2"
            )
        if marked:
            try:
                mig.plan(model.key, layout)
            except errors.UsageError as exc:
                raise errors.UsageError(f"machine {spec!r}: {exc}") from exc
        found += [(model, layout if marked else None)] * (int(count) if colon else 1)
        if (colon and not int(count)) or len(found) > MAXIMUM_DEVICES:
            raise errors.UsageError(
                f"machine {spec!r}: a machine has 1 to {MAXIMUM_DEVICES} devices, such as "
                f"{model.key}:2"
            )
    return tuple(found)
