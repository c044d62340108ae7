/* SPDX-License-Identifier: Apache-2.0 */
/* holder.c -- fills device memory, and then works with it now and then, like an idle notebook.
 *
 * holder MIB PAUSE_MS: prints "holds" and, after each pause, "intact N" or "damaged N", N counting.
 * SIGUSR1 ends a pause.
 */
#include <cuda.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    MIB = 1 << 20,
};

static void check(const char *what, int result)
{
    if (result == 0)
        return;
    fprintf(stderr, "%s: %d\n", what, result);
    exit(1);
}

static void wake(int number)
{
    (void) number;
}

static void fill(unsigned char *bytes, unsigned int seed)
{
    for (unsigned int i = 0; i < MIB; i++)
        bytes[i] = (unsigned char) (i * 31 + seed * 7 + i / 256);
}

int main(int count, char **arguments)
{
    unsigned int size = count > 1 ? (unsigned int) atoi(arguments[1]) : 1;
    useconds_t pause = (count > 2 ? (useconds_t) atoi(arguments[2]) : 100) * 1000;
    static unsigned char bytes[MIB], expected[MIB];
    CUdeviceptr address;
    CUcontext context;
    CUdevice device;

    sigaction(SIGUSR1, &(struct sigaction) {.sa_handler = wake}, NULL);
    check("cuInit", cuInit(0));
    check("cuDeviceGet", cuDeviceGet(&device, 0));
    check("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain(&context, device));
    check("cuCtxSetCurrent", cuCtxSetCurrent(context));
    check("cuMemAlloc", cuMemAlloc(&address, (size_t) size * MIB));
    for (unsigned int i = 0; i < size; i++) {
        fill(bytes, i);
        check("cuMemcpyHtoD", cuMemcpyHtoD(address + (size_t) i * MIB, bytes, MIB));
    }
    puts("holds");
    for (unsigned int turn = 0;; turn++) {
        bool intact = true;

        fflush(stdout);
        usleep(pause);
        for (unsigned int i = 0; i < size; i++) {
            fill(expected, i);
            check("cuMemcpyDtoH", cuMemcpyDtoH(bytes, address + (size_t) i * MIB, MIB));
            intact = intact && !memcmp(bytes, expected, MIB);
        }
        printf("%s %u\n", intact ? "intact" : "damaged", turn);
    }
}
