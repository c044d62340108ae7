"""Preludes for `shim_room` programs that use memory pools."""

PROPERTIES = """
class PoolProperties(ctypes.Structure):  # CUmemPoolProps
    _fields_ = [("type", INT), ("handles", INT), ("place", INT * 2), ("rest", U64 * 9)]
"""

# The device's pool; the program's first argument is the suffix of the functions to use.
POOL = """
suffix = sys.argv[1]
alloc_async = getattr(cuda, "cuMemAllocAsync" + suffix)
free_async = getattr(cuda, "cuMemFreeAsync" + suffix)
def take(size):
    pointer = U64()
    return alloc_async(byref(pointer), SIZE(size), None), pointer
def held():
    pool, value = P(), U64()
    check(cuda.cuDeviceGetMemPool(byref(pool), 0))
    check(cuda.cuMemPoolGetAttribute(pool, 5, byref(value)))
    return value.value
"""

# Pools of the program's own, too.
OWN = (
    POOL
    + PROPERTIES
    + """
def make(kind=1, place=(1, 0)):
    pool = P()
    return cuda.cuMemPoolCreate(byref(pool), byref(PoolProperties(kind, 0, place))), pool
def own_pool():
    result, pool = make()
    check(result)
    return pool
def take_from(pool, size):
    pointer = U64()
    allocate = getattr(cuda, "cuMemAllocFromPoolAsync" + suffix)
    return allocate(byref(pointer), SIZE(size), pool, None), pointer
def holds(pool):
    value = U64()
    check(cuda.cuMemPoolGetAttribute(pool, 5, byref(value)))
    return value.value
def keep_all(pool):
    check(cuda.cuMemPoolSetAttribute(pool, 4, byref(U64((1 << 64) - 1))))
"""
)
