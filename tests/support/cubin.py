"""Builds synthetic CUDA program images: cubins (ELF files) and fat binaries (lists of images).

They contain only what a driver reads before it runs anything: names, parameters, resources,
variables; no machine code.
"""

from __future__ import annotations

import dataclasses
import struct

PTX = """
.version 8.0
.target sm_70
.address_size 64
.visible .entry sim_copy(.param .u64 out, .param .u64 in, .param .u64 bytes) { ret; }
.visible .entry mixed(.param .u8 a, .param .f64 b, .param .u32 c, .param .align 4 .b8 d[10])
.maxntid 256, 1, 1
{
    .shared .align 4 .b8 tile[512];
    ret;
}
.visible .entry bare() { ret; }
.global .align 4 .u32 counter = 7;
.const .align 4 .b8 table[8] = {1, 2, 3, 4};
.global .align 8 .f64 zeros[4];
"""

_ENTRY = 0x10
_CUDA_MACHINE = 190
_PARAMETER, _REGISTERS, _THREADS, _PARAMETER_BYTES = 0x17, 0x2F, 0x05, 0x19


@dataclasses.dataclass(frozen=True, slots=True)
class Kernel:
    name: str
    parameters: tuple[tuple[int, int], ...] = ()  # offset and size, bytes
    registers: int = 16
    shared_bytes: int = 0
    max_threads: int = 0  # 0: unspecified


@dataclasses.dataclass(frozen=True, slots=True)
class Variable:
    name: str
    size: int
    initial: bytes = b""  # none: zeros


class _Strings:
    def __init__(self) -> None:
        self.data = b"\0"

    def add(self, text: str) -> int:
        at = len(self.data)
        self.data += text.encode() + b"\0"
        return at


def cubin(
    kernels: tuple[Kernel, ...], variables: tuple[Variable, ...] = (), sm: int = 90
) -> bytes:
    """Return the ELF of these kernels and variables for one compute capability."""
    sections: list[tuple[str, int, bytes, int, int]] = [("", 0, b"", 0, 0)]  # .., size, link
    names, strings = _Strings(), _Strings()
    symbols = [bytes(24)]

    initial = [v for v in variables if v.initial]
    zeros = [v for v in variables if not v.initial]
    data = b"".join(v.initial.ljust(v.size, b"\0") for v in initial)
    sections.append((".nv.global.init", 1, data, len(data), 0))
    sections.append((".nv.global", 8, b"", sum(v.size for v in zeros), 0))
    for index, group in ((1, initial), (2, zeros)):
        at = 0
        for variable in group:
            symbols.append(_symbol(strings.add(variable.name), 1, 0, index, at, variable.size))
            at += variable.size

    registers = b""
    for kernel in kernels:
        number = len(symbols)
        symbols.append(_symbol(strings.add(kernel.name), 2, _ENTRY, len(sections), 0, 128))
        sections.append((f".text.{kernel.name}", 1, bytes(128), 128, 0))
        sections.append((f".nv.info.{kernel.name}", 0x70000000, _info(kernel), -1, 0))
        if kernel.shared_bytes:
            sections.append((f".nv.shared.{kernel.name}", 8, b"", kernel.shared_bytes, 0))
        registers += struct.pack("<BBHII", 4, _REGISTERS, 8, number, kernel.registers)
    sections.append((".nv.info", 0x70000000, registers, -1, 0))
    sections.append((".strtab", 3, strings.data, -1, 0))
    sections.append((".symtab", 2, b"".join(symbols), -1, len(sections) - 1))
    offsets = [names.add(section[0]) for section in sections]
    offsets.append(names.add(".shstrtab"))
    sections.append((".shstrtab", 3, names.data, -1, 0))
    return _elf(sections, offsets, sm)


def fatbin(*parts: tuple[str, int, bytes]) -> bytes:
    """Return a fat binary of (kind, sm, content); the kinds are elf, ptx, lz4 and zstd.

    lz4 and zstd are compressed PTX: lz4 really is (as literals), zstd only sets the flag.
    """
    body = b""
    for kind, sm, content in parts:
        code = 2 if kind == "elf" else 1
        flags = {"lz4": 0x2011, "zstd": 0x8011}.get(kind, 0x11)
        packed = _literals(content) if kind == "lz4" else content
        padded = packed + bytes(-len(packed) % 8)
        body += struct.pack(
            "<HHIQIIHHIIIQQQ",
            code, 0x101, 64, len(padded), len(packed), 0, 0, 8, sm, 0, 0, flags, 0, len(content),
        )  # fmt: skip
        body += padded
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def _literals(content: bytes) -> bytes:
    """Return an LZ4 block that is one run of literals, as for content without repetition."""
    length, more = len(content), b""
    if length >= 15:
        full, rest = divmod(length - 15, 255)
        more = b"\xff" * full + bytes([rest])
    return bytes([min(length, 15) << 4]) + more + content


def _symbol(name: int, kind: int, other: int, section: int, value: int, size: int) -> bytes:
    return struct.pack("<IBBHQQ", name, kind, other, section, value, size)


def _info(kernel: Kernel) -> bytes:
    records = b"".join(
        struct.pack("<BBHIHHI", 4, _PARAMETER, 12, 0, ordinal, offset, size << 18)
        for ordinal, (offset, size) in enumerate(kernel.parameters)
    )
    end = max((offset + size for offset, size in kernel.parameters), default=0)
    records += struct.pack("<BBH", 3, _PARAMETER_BYTES, end)
    if kernel.max_threads:
        records += struct.pack("<BBHIII", 4, _THREADS, 12, kernel.max_threads, 1, 1)
    return records


def _elf(sections: list[tuple[str, int, bytes, int, int]], names: list[int], sm: int) -> bytes:
    content, headers = b"", b""
    start = 64
    for (_, kind, data, size, link), name in zip(sections, names, strict=True):
        headers += struct.pack(
            "<IIQQQQIIQQ",
            name, kind, 0, 0, start + len(content), len(data) if size < 0 else size, link, 0, 4,
            24 if kind == 2 else 0,
        )  # fmt: skip
        content += data + bytes(-len(data) % 8)
    header = struct.pack(
        "<16sHHIQQQIHHHHHH",
        b"\x7fELF\x02\x01\x01\x41\x08", 2, _CUDA_MACHINE, 1, 0, 0, start + len(content), sm << 8,
        64, 56, 0, 64, len(sections), len(sections) - 1,
    )  # fmt: skip
    return header + content + headers
