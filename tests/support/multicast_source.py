"""Prelude for `shim_room` programs that use multicast objects."""

from vmm_source import VMM

MULTICAST = (
    VMM
    + """
class Object(ctypes.Structure):  # CUmulticastObjectProp
    _fields_ = [("devices", UINT), ("size", SIZE), ("handles", U64), ("flags", U64)]
def make(size, devices=2, handles=0):
    handle = U64()
    wanted = Object(devices, size, handles, 0)
    return cuda.cuMulticastCreate(byref(handle), byref(wanted)), handle
def add(handle, ordinal):
    return cuda.cuMulticastAddDevice(handle, ordinal)
def bind(handle, memory, size, offset=0, memory_offset=0):
    return cuda.cuMulticastBindMem(
        handle, SIZE(offset), memory, SIZE(memory_offset), SIZE(size), U64(0))
def bind_on(handle, ordinal, memory, size, offset=0):
    return cuda.cuMulticastBindMem_v2(
        handle, ordinal, SIZE(offset), memory, SIZE(0), SIZE(size), U64(0))
def bind_address(handle, address, size, offset=0):
    return cuda.cuMulticastBindAddr(handle, SIZE(offset), U64(address), SIZE(size), U64(0))
def bind_address_on(handle, ordinal, address, size, offset=0):
    return cuda.cuMulticastBindAddr_v2(
        handle, ordinal, SIZE(offset), U64(address), SIZE(size), U64(0))
def unbind(handle, ordinal, size, offset=0):
    return cuda.cuMulticastUnbind(handle, ordinal, SIZE(offset), SIZE(size))
"""
)
