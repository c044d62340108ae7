"""Messages of gRPC as they stand in a stream: each behind five bytes that say how long it is."""

from __future__ import annotations

import struct

from pyvgpu.rpc import status

_HEAD = struct.Struct(">?I")


def framed(message: bytes) -> bytes:
    """Return a message as it is sent."""
    return _HEAD.pack(False, len(message)) + message


def only(content: bytes) -> bytes:
    """Return the one message that was sent; CallError if that is not what came."""
    if len(content) < _HEAD.size:
        raise status.CallError(status.Code.INTERNAL, "there is no message")
    compressed, size = _HEAD.unpack_from(content)
    if compressed:
        raise status.CallError(status.Code.UNIMPLEMENTED, "messages must not be compressed")
    if len(content) != _HEAD.size + size:
        raise status.CallError(status.Code.INTERNAL, "there must be one message")
    return content[_HEAD.size :]
