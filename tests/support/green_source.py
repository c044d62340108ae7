"""Prelude for `shim_room` programs that use green contexts."""

GREEN = """
def description(ordinal=0):
    resource = (ctypes.c_char * 144)()  # CUdevResource
    made = P()
    check(cuda.cuDeviceGetDevResource(ordinal, resource, 1))
    check(cuda.cuDevResourceGenerateDesc(byref(made), resource, 1))
    return made
def green(ordinal=0):
    made = P()
    return cuda.cuGreenCtxCreate(byref(made), description(ordinal), ordinal, 1), made
def converted(handle):
    made = P()
    check(cuda.cuCtxFromGreenCtx(byref(made), handle))
    return made
"""
