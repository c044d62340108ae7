/* SPDX-License-Identifier: Apache-2.0 */
/* peek.c -- reads mapped files that may be truncated meanwhile; see peek.h. */
#include "arbiter/peek.h"

#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>

static sigjmp_buf cut_off;
static volatile sig_atomic_t reading;

/* A SIGBUS outside of peek_at() is a real one: with the default action restored, the access faults
 * again and ends the program. */
static void fall_back(int number)
{
    if (!reading) {
        signal(number, SIG_DFL);
        return;
    }
    reading = 0;
    siglongjmp(cut_off, 1);
}

int peek_open(struct peek *peek, int fd, size_t size)
{
    const struct sigaction action = {.sa_handler = fall_back, .sa_flags = SA_NODEFER};
    void *mapped = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);

    if (mapped == MAP_FAILED || sigaction(SIGBUS, &action, NULL) != 0)
        return 0;
    *peek = (struct peek) {mapped, size};
    return 1;
}

int peek_at(const struct peek *peek, void *into, size_t size, size_t offset)
{
    const volatile uint64_t *from = peek->words + offset / sizeof(*from);
    uint64_t *to = into;

    if (!peek->words || offset > peek->size || size > peek->size - offset)
        return 0;
    if (sigsetjmp(cut_off, 0))
        return 0;
    reading = 1;
    for (size_t i = 0; i < size / sizeof(*to); i++)
        to[i] = from[i];
    reading = 0;
    return 1;
}

void peek_close(struct peek *peek)
{
    if (peek->words)
        munmap((void *) (uintptr_t) peek->words, peek->size);
    *peek = (struct peek) {NULL, 0};
}
