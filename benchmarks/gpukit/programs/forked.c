/* SPDX-License-Identifier: Apache-2.0 */
/* forked.c -- programs that fork, and that are killed.
 *
 *   forked workers WAY BYTES    a process with BYTES of the device forks workers, like a data
 *                               loader: one calls the driver, one is killed, one ends by itself
 *   forked successor WAY BYTES  a process with BYTES is killed; when can another have as many?
 *   forked orphan WAY BYTES     the same, while a child that it forked lives on
 *
 * Prints one object of JSON.
 */
#include "cu.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ANSWER_SECONDS = 5, WAIT_SECONDS = 10, NO_ANSWER = -1 };

static const char *way;
static size_t bytes;

static void make_pipe(int ends[2])
{
    if (pipe(ends) != 0) {
        perror("pipe");
        exit(FAILED);
    }
}

static pid_t fork_or_end(void)
{
    pid_t child;

    fflush(stdout);
    child = fork();
    if (child < 0) {
        perror("fork");
        exit(FAILED);
    }
    return child;
}

static int64_t read_number(int end)
{
    int64_t number;

    return read(end, &number, sizeof(number)) == (ssize_t) sizeof(number) ? number : NO_ANSWER;
}

static void write_number(int end, int64_t number)
{
    if (write(end, &number, sizeof(number)) != (ssize_t) sizeof(number))
        exit(FAILED);
}

static int end_of(pid_t child)
{
    int status = 0;

    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static size_t free_bytes(void)
{
    size_t available;
    size_t total;

    CHECK(cu.cuMemGetInfo_v2(&available, &total));
    return available;
}

/* The driver's result in a child that was forked after cuInit. */
static int64_t answer_to_child(void)
{
    int ends[2];
    pid_t child;
    int64_t answer;

    make_pipe(ends);
    child = fork_or_end();
    if (child == 0) {
        CUdeviceptr address;

        alarm(ANSWER_SECONDS);
        write_number(ends[1], cu.cuMemAlloc_v2(&address, 1 << 20));
        _exit(0);
    }
    close(ends[1]);
    answer = read_number(ends[0]);
    close(ends[0]);
    waitpid(child, NULL, 0);
    return answer;
}

static pid_t worker(int end, int other)
{
    pid_t child = fork_or_end();
    char byte;

    if (child)
        return child;
    close(other);
    while (read(end, &byte, 1) > 0)
        continue;
    exit(0); /* handlers run, as at the end of any program */
}

static int workers(void)
{
    int ends[2];
    pid_t killed;
    pid_t ending;
    CUdeviceptr held;
    CUdeviceptr more;
    size_t before;
    int64_t answer;
    int after;

    cu_begin(way);
    before = free_bytes();
    CHECK(cu.cuMemAlloc_v2(&held, bytes));
    answer = answer_to_child();
    make_pipe(ends);
    killed = worker(ends[0], ends[1]);
    ending = worker(ends[0], ends[1]);
    kill(killed, SIGKILL);
    printf("{\"child\": %lld, \"killed\": %d, ", (long long) answer, end_of(killed));
    after = cu.cuMemAlloc_v2(&more, 1 << 20);
    if (after == CUDA_SUCCESS)
        after = cu.cuMemFree_v2(more);
    close(ends[1]);
    printf("\"ended\": %d, \"after\": %d, ", end_of(ending), after);
    CHECK(cu.cuMemFree_v2(held));
    printf("\"before\": %zu, \"left\": %zu}\n", before, free_bytes());
    return 0;
}

/* Hold *bytes*; report to the parent the pid of a child, or 0. */
static void hold(int tell, int with_child)
{
    CUdeviceptr address;
    pid_t child = 0;

    cu_begin(way);
    CHECK(cu.cuMemAlloc_v2(&address, bytes));
    if (with_child) {
        child = fork_or_end();
        if (child == 0)
            for (;;)
                pause();
    }
    write_number(tell, child);
    for (;;)
        pause();
}

/* Request *bytes* until they are granted; report after how many ns, or NO_ANSWER; again for each
 * line. */
static void follow(int go, int tell)
{
    cu_begin(way);
    write_number(tell, 0);
    while (read_number(go) == 0) {
        uint64_t begin = now_ns();
        CUdeviceptr address;
        CUresult result;

        do
            result = cu.cuMemAlloc_v2(&address, bytes);
        while (result == CUDA_ERROR_OUT_OF_MEMORY && !usleep(200) &&
               now_ns() - begin < WAIT_SECONDS * 1000000000ull);
        if (result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY)
            exit(FAILED);
        write_number(tell, result == CUDA_SUCCESS ? (int64_t) (now_ns() - begin) : NO_ANSWER);
    }
    exit(0);
}

static int successor(int with_child)
{
    int held[2];
    int go[2];
    int report[2];
    pid_t holder;
    pid_t follower;
    pid_t child;
    int64_t taken;
    int64_t later = NO_ANSWER;

    make_pipe(held);
    make_pipe(go);
    make_pipe(report);
    holder = fork_or_end();
    if (holder == 0)
        hold(held[1], with_child);
    close(held[1]); /* so that a holder that failed is seen */
    child = (pid_t) read_number(held[0]);
    if (child < 0)
        return FAILED;
    follower = fork_or_end();
    if (follower == 0) {
        close(go[1]);
        follow(go[0], report[1]);
    }
    close(report[1]);
    if (read_number(report[0]) != 0)
        return FAILED;
    kill(holder, SIGKILL);
    write_number(go[1], 0);
    waitpid(holder, NULL, 0);
    taken = read_number(report[0]);
    if (child)
        kill(child, SIGKILL);
    if (taken == NO_ANSWER) {
        write_number(go[1], 0);
        later = read_number(report[0]);
    }
    close(go[1]);
    printf("{\"follower\": %d, \"taken_ns\": %lld, \"after_child_ns\": %lld}\n", end_of(follower),
           (long long) taken, (long long) later);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 4) {
        way = argv[2];
        bytes = strtoull(argv[3], NULL, 10);
        if (strcmp(argv[1], "workers") == 0)
            return workers();
        if (strcmp(argv[1], "successor") == 0)
            return successor(0);
        if (strcmp(argv[1], "orphan") == 0)
            return successor(1);
    }
    fprintf(stderr, "usage: forked workers|successor|orphan WAY BYTES, for example forked workers "
                    "linked 2147483648\n");
    return BAD_USAGE;
}
