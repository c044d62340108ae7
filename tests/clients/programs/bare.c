/* SPDX-License-Identifier: Apache-2.0 */
/* bare.c -- allocates 1 GiB on the first device and stays alive.
 *
 * Statically linked to a driver it bypasses any shim, as a malicious tenant would. Linked to the
 * shared library, it uses the one that the loader finds.
 */
#include <cuda.h>
#include <stdio.h>
#include <unistd.h>

int main(void)
{
    CUdeviceptr address;
    CUcontext context;
    CUdevice device;
    int result = cuInit(0);

    if (result == 0)
        result = cuDeviceGet(&device, 0);
    if (result == 0)
        result = cuDevicePrimaryCtxRetain(&context, device);
    if (result == 0)
        result = cuCtxSetCurrent(context);
    if (result == 0)
        result = cuMemAlloc(&address, (size_t) 1 << 30);
    printf("[%d, %d]\n", result, (int) getpid());
    fflush(stdout);
    pause();
    return result;
}
