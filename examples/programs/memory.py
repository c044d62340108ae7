"""Show CUDA's memory, allocate and use 1 GiB, try 1 GiB more (pip install cuda-bindings)."""

from cuda.bindings import driver

GIB = 1 << 30


def call(function, *arguments):
    """Call a driver function and return its results."""
    result, *values = function(*arguments)
    if result != driver.CUresult.CUDA_SUCCESS:
        raise SystemExit(f"{function.__name__}: {result.name}")
    return values[0] if len(values) == 1 else values


call(driver.cuInit, 0)
context = call(driver.cuDevicePrimaryCtxRetain, call(driver.cuDeviceGet, 0))
call(driver.cuCtxSetCurrent, context)
free, total = call(driver.cuMemGetInfo)
print(f"{free >> 20} MiB free of {total >> 20} MiB")

block = call(driver.cuMemAlloc, GIB)
sent, received = bytes(range(256)), bytearray(256)
call(driver.cuMemcpyHtoD, block, sent, 256)
call(driver.cuMemcpyDtoH, received, block, 256)
print("there and back, unchanged:", received == sent)

result, _ = driver.cuMemAlloc(GIB)
print("1 GiB more:", result.name)
