/* SPDX-License-Identifier: Apache-2.0 */
/* memorybytes.c -- access to the bytes at device-accessible addresses, also in several pieces. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "memory.h"

#define POPULATE_MIN UINT64_C(0x10000)

void *memory_reach(CUdeviceptr address, uint64_t *length)
{
    struct memory_info info;
    void *bytes = memory_chunk(address, length);

    if (bytes || !host_find(address, &info))
        return bytes;
    *length = info.base + info.size - address;
    return (void *) address;
}

void *memory_translate(CUdeviceptr address, uint64_t size)
{
    uint64_t length = 0;
    void *bytes = memory_chunk(address, &length);

    return bytes && length >= size ? bytes : NULL;
}

/* Allocate file space before a write: a full file system is then an error here instead of SIGBUS in
 * the middle of the copy. */
bool memory_make_room(void *bytes, uint64_t size)
{
    uint64_t start = (uint64_t) bytes & ~UINT64_C(4095);

    if (size < POPULATE_MIN)
        return true;
    if (madvise((void *) start, (uint64_t) bytes + size - start, MADV_POPULATE_WRITE) == 0 ||
        errno == EINVAL || errno == EINTR)
        return true;
    fprintf(stderr, "pyvgpu simulator: %s: no room for device memory: is the file system full?\n",
            process.machine->folder);
    return false;
}

bool memory_write(CUdeviceptr address, const void *bytes, uint64_t size)
{
    uint64_t length;

    for (; size; address += length, bytes = (const char *) bytes + length, size -= length) {
        void *chunk = memory_chunk(address, &length);
        if (!chunk)
            return false;
        if (length > size)
            length = size;
        if (!memory_make_room(chunk, length))
            return false;
        memcpy(chunk, bytes, length);
    }
    return true;
}
