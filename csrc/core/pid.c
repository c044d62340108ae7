/* SPDX-License-Identifier: Apache-2.0 */
/* pid.c -- reads the PID namespace from /proc; see pid.h. */
#include "core/pid.h"

#include <errno.h>
#include <unistd.h>

uint32_t pid_namespace(void)
{
    char text[32] = ""; /* pid:[4026531836] */
    uint32_t number = 0;
    int saved = errno; /* a program may read it after a call that succeeded */

    if (readlink("/proc/self/ns/pid", text, sizeof(text) - 1) > 0)
        for (const char *digit = text; *digit; digit++)
            if (*digit >= '0' && *digit <= '9')
                number = 10 * number + (uint32_t) (*digit - '0');
    errno = saved;
    return number;
}
