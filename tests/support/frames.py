"""Frames of HTTP/2 as they are on the wire, such as nobody sends."""

import struct


def frame(kind: int, flags: int, number: int, content: bytes = b"") -> bytes:
    """Return a frame of that kind for the stream of that number; RFC 9113, section 4.1."""
    size = len(content)
    return struct.pack(">HBBBI", size >> 8, size & 255, kind, flags, number) + content
