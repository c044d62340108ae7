/* SPDX-License-Identifier: Apache-2.0 */
/* witness.c -- `witness FOLDER QUOTA` reads the free memory all the time, and allocates nothing.
 *
 * It has a context on each device and is never killed or stopped. QUOTA is the total that each
 * device must show; 0: not known. An impossible value ends it with a message.
 */
#include <cuda.h>
#include <nvml.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tenant/board.h"

enum { DEVICES = 2, NAP_US = 200 };

static unsigned long long quota;

static _Noreturn void complain(const char *what, unsigned long long a, unsigned long long b,
                               unsigned long long c)
{
    dprintf(STDERR_FILENO, "witness: %s: %llu, %llu, %llu\n", what, a, b, c);
    _exit(3);
}

static void must(const char *call, int result)
{
    if (result)
        complain(call, (unsigned long long) result, 0, 0);
}
#define MUST(call) must(#call, (int) (call))

static bool is_whole(unsigned long long total)
{
    return !quota || board_is_limit(total, quota);
}

static void ask_cuda(CUcontext context)
{
    size_t available, total;

    MUST(cuCtxSetCurrent(context));
    MUST(cuMemGetInfo(&available, &total));
    if (available > total || !is_whole(total))
        complain("cuMemGetInfo: free, total", available, total, 0);
}

static void ask_nvml(nvmlDevice_t device)
{
    nvmlMemory_v2_t more = {.version = nvmlMemory_v2};
    nvmlMemory_t memory;

    MUST(nvmlDeviceGetMemoryInfo(device, &memory));
    if (memory.free > memory.total || memory.used + memory.free != memory.total ||
        !is_whole(memory.total))
        complain("nvmlMemory_t: used, free, total", memory.used, memory.free, memory.total);
    MUST(nvmlDeviceGetMemoryInfo_v2(device, &more));
    if (more.free > more.total || more.reserved + more.used + more.free != more.total ||
        !is_whole(more.total))
        complain("nvmlMemory_v2_t: used, free, total", more.used, more.free, more.total);
}

int main(int count, char **arguments)
{
    nvmlDevice_t devices[DEVICES];
    CUcontext contexts[DEVICES];
    struct board *board;

    if (count != 3) {
        fputs("usage: witness FOLDER QUOTA\n", stderr);
        return 2;
    }
    board = board_open(arguments[1]);
    board_die_with_keeper(board);
    quota = strtoull(arguments[2], NULL, 10);
    MUST(cuInit(0));
    MUST(nvmlInit());
    for (unsigned i = 0; i < DEVICES; i++) {
        MUST(cuDevicePrimaryCtxRetain(&contexts[i], (CUdevice) i));
        MUST(nvmlDeviceGetHandleByIndex(i, &devices[i]));
    }
    while (atomic_load(&board->order) != ORDER_END) {
        for (unsigned i = 0; i < DEVICES; i++) {
            ask_cuda(contexts[i]);
            ask_nvml(devices[i]);
        }
        atomic_fetch_add(&board->questions, 1);
        usleep(NAP_US);
    }
    return 0;
}
