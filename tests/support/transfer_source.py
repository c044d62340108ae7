"""Prelude for programs that call every memset and memcpy function of the driver API.

CALLS maps symbols to (function, arguments); each call copies or sets BYTES bytes.
"""

from array_source import ARRAYS

TRANSFERS = (
    ARRAYS
    + """
SIDE, BYTES = 256, 256 * 256
DEVICE_MEMORY, ARRAY_MEMORY = 2, 3
class Side2(ctypes.Structure):  # either half of CUDA_MEMCPY2D
    _fields_ = [("x", SIZE), ("y", SIZE), ("kind", INT), ("host", P), ("device", U64),
                ("array", P), ("pitch", SIZE)]
class Copy2(ctypes.Structure):
    _fields_ = [("of", Side2), ("to", Side2), ("width", SIZE), ("height", SIZE)]
class Side3(ctypes.Structure):  # either half of CUDA_MEMCPY3D and of CUDA_MEMCPY3D_PEER
    _fields_ = [("x", SIZE), ("y", SIZE), ("z", SIZE), ("lod", SIZE), ("kind", INT), ("host", P),
                ("device", U64), ("array", P), ("context", P), ("pitch", SIZE), ("height", SIZE)]
class Copy3(ctypes.Structure):
    _fields_ = [("of", Side3), ("to", Side3), ("width", SIZE), ("height", SIZE), ("depth", SIZE)]
class Place(ctypes.Structure):  # CUmemLocation
    _fields_ = [("kind", INT), ("id", INT)]
CALLS = {}
def forms(symbols, *arguments):
    for symbol in symbols.split():
        CALLS[symbol] = (getattr(cuda, symbol), arguments)
to, of, pinned = U64(), U64(), P()
def prepare(stream):
    here = P()
    check(cuda.cuCtxGetCurrent(byref(here)))
    for pointer in (to, of):
        pointer.value = alloc(BYTES)[1].value
    check(cuda.cuMemHostAlloc(byref(pinned), SIZE(BYTES), 0))
    square, line, other_line = (flat(*size, UINT8, 1)[1] for size in (
        (SIDE, SIDE), (BYTES, 0), (BYTES, 0)))
    size, side, zero = SIZE(BYTES), SIZE(SIDE), SIZE(0)
    for width in (1, 2, 4):
        name, value, count = f"cuMemsetD{8 * width}", UINT(7), SIZE(BYTES // width)
        forms(f"{name}_v2 {name}_v2_ptds", to, value, count)
        forms(f"{name}Async {name}Async_ptsz", to, value, count, stream)
        name, row = f"cuMemsetD2D{8 * width}", (to, side, value, SIZE(SIDE // width), side)
        forms(f"{name}_v2 {name}_v2_ptds", *row)
        forms(f"{name}Async {name}Async_ptsz", *row, stream)
    for name, first, last in (("DtoD", to, of), ("HtoD", to, pinned), ("DtoH", pinned, of)):
        forms(f"cuMemcpy{name}_v2 cuMemcpy{name}_v2_ptds", first, last, size)
        forms(f"cuMemcpy{name}Async_v2 cuMemcpy{name}Async_v2_ptsz", first, last, size, stream)
    forms("cuMemcpy cuMemcpy_ptds", to, of, size)
    forms("cuMemcpyAsync cuMemcpyAsync_ptsz", to, of, size, stream)
    forms("cuMemcpyPeer cuMemcpyPeer_ptds", to, here, of, here, size)
    forms("cuMemcpyPeerAsync cuMemcpyPeerAsync_ptsz", to, here, of, here, size, stream)
    forms("cuMemcpyAtoD_v2 cuMemcpyAtoD_v2_ptds", to, line, zero, size)
    forms("cuMemcpyDtoA_v2 cuMemcpyDtoA_v2_ptds", line, zero, of, size)
    forms("cuMemcpyAtoH_v2 cuMemcpyAtoH_v2_ptds", pinned, line, zero, size)
    forms("cuMemcpyHtoA_v2 cuMemcpyHtoA_v2_ptds", line, zero, pinned, size)
    forms("cuMemcpyAtoA_v2 cuMemcpyAtoA_v2_ptds", line, zero, other_line, zero, size)
    forms("cuMemcpyAtoHAsync_v2 cuMemcpyAtoHAsync_v2_ptsz", pinned, line, zero, size, stream)
    forms("cuMemcpyHtoAAsync_v2 cuMemcpyHtoAAsync_v2_ptsz", line, zero, pinned, size, stream)
    managed, here_too = U64(), Place(1, 0)
    check(cuda.cuMemAllocManaged(byref(managed), size, UINT(1)))
    forms("cuMemPrefetchAsync cuMemPrefetchAsync_ptsz", managed, size, 0, stream)
    forms("cuMemPrefetchAsync_v2 cuMemPrefetchAsync_v2_ptsz", managed, size, here_too, 0, stream)
    ranges = (U64 * 1)(managed.value), (SIZE * 1)(BYTES), SIZE(1)
    places = (Place * 1)(here_too), (SIZE * 1)(0), SIZE(1)
    for do in ("Prefetch", "DiscardAndPrefetch"):
        name = f"cuMem{do}BatchAsync"
        forms(f"{name} {name}_ptsz", *ranges, *places, U64(0), stream)
    flat_copy = Copy2(
        Side2(kind=DEVICE_MEMORY, device=of.value, pitch=SIDE),
        Side2(kind=ARRAY_MEMORY, array=square), SIDE, SIDE)
    forms("cuMemcpy2D_v2 cuMemcpy2D_v2_ptds cuMemcpy2DUnaligned_v2 cuMemcpy2DUnaligned_v2_ptds",
          byref(flat_copy))
    forms("cuMemcpy2DAsync_v2 cuMemcpy2DAsync_v2_ptsz", byref(flat_copy), stream)
    sides = [Side3(kind=DEVICE_MEMORY, device=each.value, pitch=SIDE, height=SIDE)
             for each in (of, to)]
    solid_copy = Copy3(*sides, SIDE, SIDE, 1)
    forms("cuMemcpy3D_v2 cuMemcpy3D_v2_ptds", byref(solid_copy))
    forms("cuMemcpy3DAsync_v2 cuMemcpy3DAsync_v2_ptsz", byref(solid_copy), stream)
    for side in sides:
        side.context = here
    peer_copy = Copy3(*sides, SIDE, SIDE, 1)
    forms("cuMemcpy3DPeer cuMemcpy3DPeer_ptds", byref(peer_copy))
    forms("cuMemcpy3DPeerAsync cuMemcpy3DPeerAsync_ptsz", byref(peer_copy), stream)
"""
)
