/* SPDX-License-Identifier: Apache-2.0 */
/* created.c -- OCI runtime hook (createRuntime) that notifies the node agent of a new container.
 *
 *   pyvgpu-created SOCKET GRANT     the container's state, as JSON, on standard input
 *
 * At this point the container has a process and its cgroups, and its program has not begun: so the
 * agent can still configure the cgroup. The request is one packet, {"grant": GRANT, "pid": PID}, as
 * in pyvgpu/machine/ipc.py; the answer, or two seconds without one, lets the container go on. The
 * exit code is always 0: even without the agent the shim enforces the container's quota.
 */
#include "programs/bare.h"

#include <linux/errno.h>
#include <linux/fcntl.h>

enum {
    MOST_BYTES = 1 << 20, /* all annotations together have at most 256 KiB */
    MOST_QUESTION = 256,
    MOST_PATH = 108, /* of a socket */
    UNIX = 1,        /* AF_UNIX */
    PACKETS = 5,     /* SOCK_SEQPACKET */
    CLOSED_BY_EXEC = O_CLOEXEC,
    READABLE = 1, /* POLLIN */
    SECONDS = 2,
};

struct address {
    unsigned short family;
    char path[MOST_PATH];
};

struct waited {
    int descriptor;
    short events;
    short result;
};

static char text[MOST_BYTES + 1];

__attribute__((noreturn)) static void end(void)
{
    for (;;)
        bare_call(__NR_exit_group, 0, 0, 0, 0);
}

static long read_state(void)
{
    long length = 0, count;

    do {
        count = bare_call(__NR_read, 0, (long) (text + length), MOST_BYTES - length, 0);
        if (count > 0)
            length += count;
    } while ((count > 0 || count == -EINTR) && length < MOST_BYTES);
    return length;
}

/* The number after the key "pid"; 0 if there is none. Text in a string cannot match, since its
 * quotes have a backslash before them; another "pid" whose value is a string has no number. */
static long find_pid(long length)
{
    static const char key[] = "\"pid\"";
    const long size = sizeof(key) - 1;

    for (long at = 0; at + size < length; at++) {
        long matched = 0, pid = 0, behind;

        while (matched < size && text[at + matched] == key[matched])
            matched++;
        behind = at + size;
        while (text[behind] == ' ' || text[behind] == ':')
            behind++;
        while (matched == size && pid < 1 << 30 && text[behind] >= '0' && text[behind] <= '9')
            pid = 10 * pid + (text[behind++] - '0');
        if (pid)
            return pid;
    }
    return 0;
}

static char *add(char *to, const char *end_of, const char *from)
{
    while (*from && to < end_of)
        *to++ = *from++;
    return to;
}

static char *add_number(char *to, const char *end_of, long number)
{
    char digits[24];
    long at = sizeof(digits) - 1;

    digits[at] = '\0';
    do
        digits[--at] = (char) ('0' + number % 10);
    while (number /= 10);
    return add(to, end_of, digits + at);
}

static void ask(const char *path, const char *grant, long pid)
{
    char question[MOST_QUESTION], *behind = question;
    const char *end_of = question + sizeof(question);
    struct address address = {.family = UNIX};
    struct waited waited = {.events = READABLE};
    long timeout[2] = {SECONDS, 0};
    char *end_of_path = add(address.path, address.path + MOST_PATH, path);
    long descriptor = bare_call(__NR_socket, UNIX, PACKETS | CLOSED_BY_EXEC, 0, 0);

    if (descriptor < 0 || end_of_path == address.path + MOST_PATH ||
        bare_call(__NR_connect, descriptor, (long) &address, sizeof(address), 0) < 0)
        return;
    behind = add(behind, end_of, "{\"grant\": \"");
    behind = add(behind, end_of, grant);
    behind = add(behind, end_of, "\", \"pid\": ");
    behind = add_number(behind, end_of, pid);
    behind = add(behind, end_of, "}");
    bare_call(__NR_write, descriptor, (long) question, behind - question, 0);
    waited.descriptor = (int) descriptor;
    bare_call(__NR_ppoll, (long) &waited, 1, (long) timeout, 0);
}

void bare_main(long *stack)
{
    char **argv = (char **) (stack + 1);
    long pid;

    if (*stack != 3)
        end();
    pid = find_pid(read_state());
    if (pid)
        ask(argv[1], argv[2], pid);
    end();
}
