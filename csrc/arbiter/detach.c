/* SPDX-License-Identifier: Apache-2.0 */
/* detach.c -- forks twice; see detach.h. */
#include "arbiter/detach.h"
#include "core/compiler.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define DESCRIPTORS 1024 /* that are closed, in case the caller left any open */

static const char well[] = "";

static void __attribute__((noreturn)) wait_for_report(int pipe_end)
{
    char text[512];
    size_t size = 0;
    ssize_t more;

    while (size < sizeof(text) - 1 &&
           (more = read(pipe_end, text + size, sizeof(text) - 1 - size)) > 0)
        size += (size_t) more;
    text[size] = 0;
    if (text[0])
        fprintf(stderr, "%s\n", text);
    _exit(size && !text[0] ? 0 : 1);
}

static void let_go_of_descriptors(int keep)
{
    int null = open("/dev/null", O_RDWR);

    for (int fd = 0; fd < DESCRIPTORS; fd++) {
        if (fd == keep || fd == null)
            continue;
        if (fd > STDERR_FILENO)
            close(fd);
        else
            dup2(null, fd);
    }
    if (null > STDERR_FILENO)
        close(null);
}

static void let_go_of_signals(void)
{
    sigset_t none;

    for (int number = 1; number < NSIG; number++)
        signal(number, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

int detach(void)
{
    int ends[2];
    pid_t child;

    if (pipe2(ends, O_CLOEXEC) != 0 || (child = fork()) < 0)
        return -1;
    if (child > 0) {
        close(ends[1]);
        wait_for_report(ends[0]);
    }
    setsid();
    child = fork(); /* only a session leader can acquire a controlling terminal */
    if (child > 0)
        _exit(0);
    if (child < 0 || chdir("/") != 0) {
        detach_report(ends[1], strerror(errno));
        _exit(1);
    }
    umask(022);
    let_go_of_signals();
    let_go_of_descriptors(ends[1]);
    return ends[1];
}

void detach_report(int report, const char *failure)
{
    const char *text = failure ? failure : well;
    size_t size = failure ? strlen(failure) : sizeof(well);
    ssize_t written;

    /* The waiting process may be gone: a supervisor kills it after too long a wait. */
    signal(SIGPIPE, SIG_IGN);
    written = write(report, text, size);
    (void) written;
    signal(SIGPIPE, SIG_DFL);
    close(report);
}
