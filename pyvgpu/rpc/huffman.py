"""The code in which HTTP/2 may have texts of headers: RFC 7541, appendix B.

It is canonical: of one length, codes go up with the letters, and those of the next length begin
where these have ended. So how long each letter's is says all of it.
"""

from __future__ import annotations

import functools

_SHORTEST, _LONGEST = 5, 30  # bits
_ORDINARY = {  # letters that texts are made of, by the length of their codes
    5: b"012aceiost",
    6: b" %-./3456789=A_bdfghlmnpru",
    7: b":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz",
    8: b"&*,;XZ",
    10: b'!"()?',
    11: b"'+|",
    12: b"#>",
    13: b"\0$@[]~",
    14: b"^}",
    15: b"<`{",
}
_RARE = {  # the others, in hexadecimal
    19: "5cc3d0",
    20: "808283a2b8c2e0e2",
    21: "99a1a7acb0b1b3d1d8d9e3e5e6",
    22: "8184858688929a9ca0a3a4a9aaadb2b5b9babbbdbec4c6e4e8e9",
    23: "0187898a8b8c8d8f93959697989b9d9ea5a6a8aeafb4b6b7bcbfc5e7ef",
    24: "098e9091949fabced7e1eced",
    25: "c7cfeaeb",
    26: "c0c1c8c9cacdd2d5dadbeef0f2f3ff",
    27: "cbccd3d4d6dddedff1f4f5f6f7f8fafbfcfdfe",
    28: "020304050607080b0c0e0f1011121314151718191a1b1c1d1e1f7fdcf9",
    30: "0a0d16",
}


def _codes() -> dict[str, int]:
    """Return the letters by their codes, as texts of bits."""
    found, code = {}, 0
    for length in range(_SHORTEST, _LONGEST + 1):
        for letter in _ORDINARY.get(length, b"") + bytes.fromhex(_RARE.get(length, "")):
            found[f"{code:0{length}b}"] = letter
            code += 1
        code <<= 1
    return found


_CODES = _codes()


@functools.lru_cache(256)
def decode(content: bytes) -> bytes:
    """Return the text that is *content* on the wire; ValueError if none is."""
    bits = f"{int.from_bytes(content, 'big'):0{8 * len(content)}b}" if content else ""
    found = bytearray()
    begin, end = 0, _SHORTEST
    while end <= len(bits):
        letter = _CODES.get(bits[begin:end])
        if letter is None:
            end += 1
            if end - begin > _LONGEST:
                raise ValueError("a header is in no code of HTTP/2")
        else:
            found.append(letter)
            begin, end = end, end + _SHORTEST
    if len(bits) - begin > 7 or "0" in bits[begin:]:  # what fills the last byte is ones
        raise ValueError("a header is in no code of HTTP/2")
    return bytes(found)
