"""Compares every symbol lookup through the shim with the driver's; runs in its own process.

Prints a JSON document. It calls only cuGetProcAddress, in the forms that the driver has, and
compares the functions that names resolve to by address, through the driver's own handle and
through the shim's.
"""

import ctypes
import json
import os
import sys

SHIM = "libcuda.so.1"
ORIGINS = {"cu": "libcuda-origin.so.1", "nvml": "libnvidia-ml-origin.so.1"}
FLAGS = (0, 1, 2)  # default, legacy stream, per-thread default stream


class Object(ctypes.Structure):
    _fields_ = (
        ("path", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


libc = ctypes.CDLL(None)
libc.dlsym.restype = ctypes.c_void_p
libc.dlsym.argtypes = (ctypes.c_void_p, ctypes.c_char_p)
libc.dladdr.argtypes = (ctypes.c_void_p, ctypes.POINTER(Object))


def address(library, name):
    return libc.dlsym(library._handle, name.encode())


def path_of(pointer):
    found = Object()
    if not pointer or not libc.dladdr(pointer, ctypes.byref(found)):
        return None
    return os.path.realpath(found.path.decode())


def ask(library, entry, name, version, flags):
    """Return the code, pointer and status of one form of cuGetProcAddress."""
    pointer = ctypes.c_void_p(1)
    status = ctypes.c_int(-7)
    more = (ctypes.byref(status),) if entry.endswith("_v2") else ()
    code = library[entry](
        name.encode(), ctypes.byref(pointer), version, ctypes.c_uint64(flags), *more
    )
    return code, pointer.value, status.value


def compare_exports(shim, origins, names):
    """Return the library in which dlsym through the shim ends, and whether it is the driver's."""
    own = {n: address(origins["nvml" if n.startswith("nvml") else "cu"], n) for n in names}
    return {
        name: {"path": path_of(address(shim, name)), "same": address(shim, name) == own[name]}
        for name in names
    }


def find_aliases(origins, names, hooks):
    """Return hooks whose driver function is also exported under an unhooked name."""
    by_address = {}
    for name in names:
        own = address(origins["nvml" if name.startswith("nvml") else "cu"], name)
        by_address.setdefault(own, set()).add(name)
    shared = [found for found in by_address.values() if found & hooks and found - hooks]
    return sorted(sorted(found) for found in shared)


def compare_answers(shim, origin, bases, versions, hooks):
    """Look up everything in both; list where the shim's answer is not the expected one."""
    route = {address(origin, hook): address(shim, hook) for hook in hooks}
    route.pop(None, None)
    wrong, hooked = [], set()
    asked = 0
    for entry in filter(lambda e: address(origin, e), ("cuGetProcAddress", "cuGetProcAddress_v2")):
        for name in bases:
            for version in versions:
                for flags in FLAGS:
                    asked += 1
                    code, pointer, status = ask(origin, entry, name, version, flags)
                    expected = (code, route.get(pointer, pointer), status)
                    got = ask(shim, entry, name, version, flags)
                    if got != expected:
                        wrong.append([entry, name, version, flags, expected, got])
                    if pointer in route:
                        hooked.add((name, version))
    return {"asked": asked, "wrong": wrong[:20], "hooked": sorted(hooked)}


def main():
    question = json.load(sys.stdin)
    shim = ctypes.CDLL(SHIM)
    origins = {kind: ctypes.CDLL(name, os.RTLD_NOLOAD) for kind, name in ORIGINS.items()}
    json.dump(
        {
            "exports": compare_exports(shim, origins, question["exports"]),
            "aliases": find_aliases(origins, question["exports"], set(question["hooks"])),
            "answers": compare_answers(
                shim, origins["cu"], question["bases"], question["versions"], question["hooks"]
            ),
        },
        sys.stdout,
    )


if __name__ == "__main__":
    main()
