"""Memory that cannot be accounted is refused, however a program requests it.

That both ways lead to the shim is test_routing's; here it is what they answer.
"""

import json

import pytest

NOT_SUPPORTED = 801
ENTRIES = [
    "cuMemAlloc",
    "cuMemAllocPitch",
    "cuMemFree",
    "cuMemGetInfo",
    "cuDeviceTotalMem",
    "cuArrayCreate",
    "cuArray3DCreate",
]
ROUTES = {
    "dlsym": "return getattr(cuda, name)",
    "cuGetProcAddress": """
    pointer, status = P(), INT()
    check(cuda.cuGetProcAddress_v2(name.encode(), byref(pointer), 2000, U64(0), byref(status)))
    return ctypes.CFUNCTYPE(INT, P, P, UINT, UINT, UINT)(pointer.value)
""",
}


@pytest.mark.parametrize("route", ROUTES.values(), ids=ROUTES.keys())
def test_entry_of_32_bits_is_refused_and_takes_nothing(room, route):
    answer = room.ask(
        f"""
def find(name):
    {route.strip()}
context()
before = available()
row = (U64 * 8)(64 << 32 | 64, 1 << 32 | 0x20, 1)  # a description of a small array, among others
results = [find(name)(row, row, UINT(64), UINT(64), UINT(4)) for name in json.loads(sys.argv[1])]
answer([results, before - available()])
""",
        json.dumps(ENTRIES),
    )
    assert answer == [[NOT_SUPPORTED] * len(ENTRIES), 0]


def test_memory_is_not_bound_to_endpoints_of_a_fabric(room):
    answer = room.ask("""
context()
answer([cuda.cuLogicalEndpointBindMem(1, 0, U64(0), U64(1), U64(0), U64(2 * MIB), U64(0)),
        cuda.cuLogicalEndpointBindAddr(1, 0, U64(0), P(4096), U64(2 * MIB), U64(0))])
""")
    assert answer == [NOT_SUPPORTED] * 2
