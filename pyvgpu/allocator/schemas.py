"""JSON Schemas (draft 2020-12) of the annotations of :mod:`.annotations`."""

from __future__ import annotations

from typing import Any

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_WORD = {"type": "string"}
_COUNT = {"type": "integer", "minimum": 0}
_BYTES = {"type": "integer", "minimum": 1}
_OR_NOT = {"type": ["integer", "null"], "minimum": 0}


def _object(properties: dict[str, Any], optional: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {**properties, **(optional or {})},
        "required": sorted(properties),
        "additionalProperties": False,
    }


_PLACE = {"type": "string", "pattern": "^.+@[0-9]+$"}
_MIG_PROFILE = _object(
    {
        "name": _WORD,
        "id": _COUNT,
        "bytes": _BYTES,
        "sms": _BYTES,
        "slices": _BYTES,
        "size": _BYTES,
        "most": _BYTES,
        "starts": {"type": "array", "items": _COUNT},
    }
)
_SHARE = _object(
    {
        "uuid": _WORD,
        "vcore": {"type": "integer", "minimum": 1, "maximum": 100},
        "bytes": _BYTES,
    },
    {"mig": _PLACE},
)
_CONTAINERS = {"type": "object", "additionalProperties": {"type": "array", "items": _SHARE}}
_LINK = {
    "type": "array",
    "prefixItems": [{"enum": [1, 2, 3, 4]}, _COUNT],
    "minItems": 2,
    "maxItems": 2,
}
_DEVICE = _object(
    {
        "uuid": _WORD,
        "index": _COUNT,
        "minor": _OR_NOT,
        "bytes": _BYTES,
        "least": _BYTES,
        "model": _WORD,
        "class": _WORD,
        "numa": _OR_NOT,
        "links": {
            "type": "object",
            "propertyNames": {"pattern": "^[0-9]+$"},
            "additionalProperties": _LINK,
        },
        "health": _WORD,
        "cordoned": {"type": "boolean"},
        "allocatedBy": _WORD,
    },
    {
        "mig": {"type": "array", "items": _MIG_PROFILE},
        "taken": {"type": "array", "items": _PLACE},
        "mps": {"type": "boolean"},
        "reservable": {"type": "integer", "minimum": 100},
    },
)

NODE_DEVICES: dict[str, Any] = {
    "$schema": _DIALECT,
    "title": "pyvgpu.io/node-devices",
    **_object(
        {
            "v": {"const": 1},
            "memory_unit": _BYTES,
            "devices": {"type": "array", "items": _DEVICE},
            "grants": {"type": "object", "additionalProperties": _CONTAINERS},
        }
    ),
}
DEVICES: dict[str, Any] = {
    "$schema": _DIALECT,
    "title": "pyvgpu.io/devices",
    **_object(
        {
            "v": {"const": 1},
            "uid": _WORD,
            "node": _WORD,
            "containers": _CONTAINERS,
            "sig": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
        }
    ),
}
