/* SPDX-License-Identifier: Apache-2.0 */
/* brief.c -- workload of short-lived processes, each using the device once, as from xargs or a fork
 * server. */
#include "kinds.h"
#include "program.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define POLL_NS (100 * MICROSECOND_NS)
#define LAST_NS (10 * MICROSECOND_NS)

enum { CHILDREN = 8, SAYS = STDERR_FILENO + 1 };

static const char *const names[CHILDREN + 1] = {"child0", "child1", "child2", "child3", "child4",
                                                "child5", "child6", "child7", "child8"};

static void fail(const char *call)
{
    perror(call);
    _exit(1);
}

static pid_t start_child(uint64_t length_ns, int *says)
{
    char length[32];
    int ends[2];
    pid_t child;

    snprintf(length, sizeof(length), "%" PRIu64, length_ns);
    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK))
        fail("pipe2");
    child = fork();
    if (child < 0)
        fail("fork");
    if (child == 0) {
        if (dup2(ends[1], SAYS) == SAYS)
            execl("/proc/self/exe", "work", "briefchild", length, NULL);
        fail("execl");
    }
    close(ends[1]);
    *says = ends[0];
    return child;
}

/* The virtual clock advances only as this loop reads it: a start takes no longer than by a real
 * clock. */
static void wait_for_word(int says, bool sleep)
{
    char word;

    while (read(says, &word, 1) < 0 && errno == EAGAIN) {
        uint64_t now = program_now();

        if (sleep)
            program_sleep_until(now + POLL_NS);
    }
}

static void wait_for_end(pid_t child, bool killed)
{
    int status;

    while (waitpid(child, &status, WNOHANG) == 0)
        program_sleep_until(program_now() + POLL_NS);
    if (killed ? !WIFSIGNALED(status) : status != 0) {
        fprintf(stderr, "work: a child ended with %d\n", status);
        _exit(1);
    }
}

static uint64_t run_child(uint64_t length_ns, bool killed)
{
    int says;
    pid_t child = start_child(length_ns, &says);

    wait_for_word(says, false);
    wait_for_word(says, true);
    if (killed) {
        program_sleep_until(program_now() + length_ns / 2);
        kill(child, SIGKILL);
    }
    wait_for_end(child, killed);
    close(says);
    return (uint64_t) child;
}

/* The last child needs next to no device time: once it got that, all earlier ones are charged. */
void brief_run(void)
{
    bool killed = program.more[0];

    for (int i = 0; i < CHILDREN; i++)
        program_tell(names[i], run_child(program.length_ns, killed));
    program_tell(names[CHILDREN], run_child(LAST_NS, false));
    program_tell("work_ns", program_now() - program.from_ns);
}

static void say(void)
{
    if (write(SAYS, "", 1) != 1)
        fail("write");
}

/* Reports when it is ready, and when its kernel was launched. */
void brief_child(void)
{
    struct shape shape = {0};
    struct caller caller;
    CUresult result;
    CUstream stream;

    program_start();
    shape = (struct shape) {program_function(0), BLOCKS, THREADS, 0};
    say();
    program_begin_caller(&caller);
    stream = program_stream();
    program_launch_caller(&caller, &shape, program.length_ns, stream);
    say();
    while ((result = cuStreamQuery(stream)) == CUDA_ERROR_NOT_READY)
        program_sleep_until(program_now() + POLL_NS);
    program_check("cuStreamQuery", result);
    _exit(0);
}
