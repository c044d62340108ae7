/* SPDX-License-Identifier: Apache-2.0 */
/* log.c -- writes each line with one write(), so that lines of several processes do not mix. */
#include "core/log.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

int log_threshold = LOG_ERROR;

void log_configure(void)
{
    const char *wanted = getenv("PYVGPU_LOG");

    log_threshold = wanted && strcmp(wanted, "info") == 0 ? LOG_INFO : LOG_ERROR;
}

/* Write to standard error. It may be a pipe whose reader has gone: block SIGPIPE, which would end
 * the program. */
static void write_line(const char *line, size_t length)
{
    const struct timespec at_once = {0};
    sigset_t pipe_signal;
    sigset_t pending;
    sigset_t before;
    ssize_t written;

    sigemptyset(&pipe_signal);
    sigaddset(&pipe_signal, SIGPIPE);
    sigpending(&pending);
    if (sigprocmask(SIG_BLOCK, &pipe_signal, &before) != 0)
        return;
    written = write(STDERR_FILENO, line, length);
    if (written < 0 && errno == EPIPE && !sigismember(&pending, SIGPIPE))
        sigtimedwait(&pipe_signal, NULL, &at_once);
    sigprocmask(SIG_SETMASK, &before, NULL);
}

void log_write(enum log_level level, const char *format, ...)
{
    char line[1024];
    int saved = errno;
    int length = snprintf(line, sizeof(line), "pyvgpu: ");
    va_list arguments;

    if ((int) level > log_threshold)
        return;
    va_start(arguments, format);
    length += vsnprintf(line + length, sizeof(line) - (size_t) length - 1, format, arguments);
    va_end(arguments);
    if (length > (int) sizeof(line) - 2)
        length = (int) sizeof(line) - 2;
    line[length] = '\n';
    write_line(line, (size_t) length + 1);
    errno = saved;
}
