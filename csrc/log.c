/* SPDX-License-Identifier: Apache-2.0 */
/* log.c -- one line, one write, so that lines of several processes do not mix. */
#include "log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int log_threshold = LOG_ERROR;

void log_configure(void)
{
    const char *wanted = getenv("PYVGPU_LOG");

    log_threshold = wanted && strcmp(wanted, "info") == 0 ? LOG_INFO : LOG_ERROR;
}

void log_write(enum log_level level, const char *format, ...)
{
    char line[1024];
    int saved = errno;
    int length = snprintf(line, sizeof(line), "pyvgpu: ");
    va_list arguments;
    ssize_t written;

    if ((int) level > log_threshold)
        return;
    va_start(arguments, format);
    length += vsnprintf(line + length, sizeof(line) - (size_t) length - 1, format, arguments);
    va_end(arguments);
    if (length > (int) sizeof(line) - 2)
        length = (int) sizeof(line) - 2;
    line[length] = '\n';
    written = write(STDERR_FILENO, line, (size_t) length + 1);
    (void) written; /* there is nowhere left to say it */
    errno = saved;
}
