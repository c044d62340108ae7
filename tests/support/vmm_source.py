"""Prelude for `shim_room` programs that use virtual memory management."""

VMM = """
class Properties(ctypes.Structure):  # CUmemAllocationProp
    _fields_ = [("type", INT), ("handles", INT), ("place", INT), ("id", INT), ("meta", P),
                ("compression", ctypes.c_ubyte), ("rdma", ctypes.c_ubyte),
                ("usage", ctypes.c_ushort), ("reserved", ctypes.c_ubyte * 4)]
def on_device(ordinal=0, handles=0, usage=0):
    return Properties(type=1, handles=handles, place=1, id=ordinal, usage=usage)
def create(size, properties=None):
    handle = U64()
    wanted = properties or on_device()
    return cuda.cuMemCreate(byref(handle), SIZE(size), byref(wanted), U64(0)), handle
def release(handle):
    return cuda.cuMemRelease(handle)
def reserve(size):
    address = U64()
    check(cuda.cuMemAddressReserve(byref(address), SIZE(size), SIZE(0), U64(0), U64(0)))
    return address.value
def map(address, size, handle, offset=0):
    return cuda.cuMemMap(U64(address), SIZE(size), SIZE(offset), handle, U64(0))
def unmap(address, size):
    return cuda.cuMemUnmap(U64(address), SIZE(size))
def retain(address):
    handle = U64()
    return cuda.cuMemRetainAllocationHandle(byref(handle), P(address)), handle
"""
