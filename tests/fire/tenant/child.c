/* SPDX-License-Identifier: Apache-2.0 */
/* child.c -- fork, vfork and exec while the other threads work; and children that outlive their
 * killed parent and keep its memory. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tenant.h"

enum { PATIENCE_S = 60, LONELY_US = 20000, LINGER_US = 1000000 };

static char self[] = "/proc/self/exe";

/* The seed is the last argument. */
static void be_again(char **arguments, char *seed, size_t size, uint64_t random, const char *how)
{
    unsigned count = 0;

    for (; tenant.arguments[count]; count++)
        arguments[count] = tenant.arguments[count];
    snprintf(seed, size, "%llu", (unsigned long long) (random >> 1));
    arguments[count - 1] = seed;
    arguments[count - 2] = (char *) how;
    arguments[count] = NULL;
}

static void bury(struct hand *hand, pid_t child)
{
    int status;

    if (child < 0)
        hand_complain(hand, "fork", errno);
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR)
            hand_complain(hand, "waitpid", errno);
    if (status && !(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL))
        hand_complain(hand, "a child", status);
}

/* A child that did not exec cannot use the driver. It holds its parent's memory. */
static void be_a_child(const struct hand *hand)
{
    size_t available, total;
    CUdeviceptr address;
    int wrong = 0;

    alarm(PATIENCE_S);
    wrong |= cuMemAlloc(&address, MIB) == CUDA_SUCCESS;
    wrong |= cuMemGetInfo(&available, &total) == CUDA_SUCCESS;
    for (unsigned i = 0; i < hand->count; i++)
        wrong |= cuMemFree(hand->items[i].address) == CUDA_SUCCESS;
    if (hand->random & 1)
        usleep(LONELY_US);
    _exit(wrong);
}

static void fork_only(struct hand *hand)
{
    pid_t child = fork();

    if (child == 0)
        be_a_child(hand);
    bury(hand, child);
}

/* It ends by itself, is killed, or becomes another tenant. A kill of the parent's process group
 * does not reach it. */
static void linger(unsigned us, unsigned end, char **arguments)
{
    setsid();
    alarm(PATIENCE_S);
    usleep(us);
    if (end == 0)
        raise(SIGKILL);
    if (end == 1)
        execv(self, arguments);
    _exit(0);
}

/* No process waits for the grandchild. */
static void fork_twice(struct hand *hand)
{
    unsigned us = hand_pick(hand, LINGER_US), end = hand_pick(hand, 4);
    char *arguments[16], seed[24];
    pid_t child;

    be_again(arguments, seed, sizeof(seed), hand_random(hand), "brief");
    child = fork();
    if (child == 0) {
        child = fork();
        if (child == 0)
            linger(us, end, arguments);
        _exit(child < 0);
    }
    bury(hand, child);
}

static void spawn(struct hand *hand, pid_t (*start)(void))
{
    char *arguments[16], seed[24];
    pid_t child;

    be_again(arguments, seed, sizeof(seed), hand_random(hand), "brief");
    child = start();
    if (child == 0) {
        execv(self, arguments);
        _exit(127);
    }
    bury(hand, child);
}

void child_work(struct hand *hand)
{
    char *arguments[16], seed[24];

    switch (hand_pick(hand, 8)) {
    case 0:
        hand_does(hand, "exec");
        be_again(arguments, seed, sizeof(seed), hand_random(hand), "long");
        execv(self, arguments);
        hand_complain(hand, "execv", errno);
    case 1:
        hand_does(hand, "fork, exec");
        spawn(hand, fork);
        break;
    case 2:
        hand_does(hand, "vfork, exec");
        spawn(hand, vfork);
        break;
    case 3:
    case 4:
    case 5:
        hand_does(hand, "fork twice");
        fork_twice(hand);
        break;
    default:
        hand_does(hand, "fork");
        fork_only(hand);
    }
}
