/* SPDX-License-Identifier: Apache-2.0 */
/* kernel.c -- real time and thread states; see kernel.h. */
#include "kernel.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

uint64_t kernel_now_ns(void)
{
    struct timespec time;

    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &time);
    return (uint64_t) time.tv_sec * UINT64_C(1000000000) + (uint64_t) time.tv_nsec;
}

/* Read a thread's file in /proc; empty if there is none. */
static void read_of(uint32_t process, uint32_t thread, const char *name, char *line, size_t size)
{
    char path[64];
    ssize_t count = -1;
    int fd;

    snprintf(path, sizeof(path), "/proc/%u/task/%u/%s", process, thread, name);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        count = read(fd, line, size - 1);
        close(fd);
    }
    line[count > 0 ? count : 0] = '\0';
}

char kernel_state_of(uint32_t process, uint32_t thread)
{
    char line[512];
    const char *name_end;

    read_of(process, thread, "stat", line, sizeof(line));
    name_end = strrchr(line, ')');
    return name_end && name_end[1] ? name_end[2] : 'X';
}

uint64_t kernel_ran_ns(uint32_t process, uint32_t thread)
{
    char line[128];

    read_of(process, thread, "schedstat", line, sizeof(line));
    return strtoull(line, NULL, 10);
}
