/* SPDX-License-Identifier: Apache-2.0 */
/* launcher.c -- the program in the fast-exit image, which runs in place of a sidecar's program.
 *
 *   ANYTHING ...            exit at once with code 0, whatever the arguments
 *   pyvgpu-launch FILE      exec the program whose argv is in FILE, a JSON array of strings
 *   pyvgpu-launch -i FILE   copy itself to FILE, from where other containers of the pod start it
 *
 * The second form is for nodes that do not expand $(NAME) in commands: FILE is an annotation of the
 * pod, by the downward API. In the fast-exit image it exits with 0, too: the image was swapped, and
 * FILE may still be the old one. Its own exit codes are those of a shell: 127 no such program, 126
 * it cannot be started, and 125 no argv.
 */
#include "programs/sidecar/arguments.h"
#include "programs/bare.h"

#include <linux/errno.h>
#include <linux/fcntl.h>

enum {
    MOST_BYTES = 512 * 1024, /* all annotations together have at most 256 KiB */
    MOST_ARGUMENTS = 64 * 1024,
    MOST_PATH = 4096,
    NO_ARGV = 125,
    NO_START = 126,
    NO_PROGRAM = 127,
};

static const char fast_exit[] = "/pyvgpu-exit"; /* only the fast-exit image has it */

static char text[MOST_BYTES + 1];
static char *arguments[MOST_ARGUMENTS + 1];

__attribute__((noreturn)) static void end(int code)
{
    for (;;)
        bare_call(__NR_exit_group, code, 0, 0, 0);
}

static long length_of(const char *string)
{
    long length = 0;

    while (string[length])
        length++;
    return length;
}

static int is_same(const char *one, const char *other, long length)
{
    for (long i = 0; i < length; i++)
        if (one[i] != other[i])
            return 0;
    return 1;
}

__attribute__((noreturn)) static void fail(int code, const char *what, const char *name)
{
    const char *parts[] = {"pyvgpu-launch: ", what, name, "\n"};

    for (int i = 0; i < 4; i++)
        bare_call(__NR_write, 2, (long) parts[i], length_of(parts[i]), 0);
    end(code);
}

static long open_file(const char *path, int flags, int mode)
{
    return bare_call(__NR_openat, AT_FDCWD, (long) path, flags | O_CLOEXEC, mode);
}

static long read_file(const char *path)
{
    long descriptor = open_file(path, O_RDONLY, 0);
    long length = 0, count;

    if (descriptor < 0)
        fail(NO_ARGV, "cannot open ", path);
    do {
        count = bare_call(__NR_read, descriptor, (long) (text + length), MOST_BYTES - length, 0);
        if (count < 0 && count != -EINTR)
            fail(NO_ARGV, "cannot read ", path);
        if (count > 0)
            length += count;
    } while (count && length < MOST_BYTES);
    return length;
}

__attribute__((noreturn)) static void copy_to(const char *path)
{
    long length = read_file("/proc/self/exe");
    long descriptor = open_file(path, O_WRONLY | O_CREAT | O_TRUNC, 0755);
    long written = 0, count;

    if (descriptor < 0)
        fail(NO_START, "cannot make ", path);
    while (written < length) {
        count = bare_call(__NR_write, descriptor, (long) (text + written), length - written, 0);
        if (count <= 0 && count != -EINTR)
            fail(NO_START, "cannot write ", path);
        if (count > 0)
            written += count;
    }
    end(0);
}

static const char *search_path(char **environment)
{
    for (; *environment; environment++)
        if (is_same(*environment, "PATH=", 5))
            return *environment + 5;
    return "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
}

static long start(const char *path, char **environment)
{
    return bare_call(__NR_execve, (long) path, (long) arguments, (long) environment, 0);
}

/* Try each folder of PATH, like a container runtime; returns the error if none works. */
static long search(const char *name, char **environment)
{
    static char path[MOST_PATH];
    const char *folder = search_path(environment);
    long result = -ENOENT, refused;

    while (*folder) {
        long length = 0, from = 0;

        while (folder[length] && folder[length] != ':')
            length++;
        if (length && length + length_of(name) + 2 <= MOST_PATH) {
            while (from < length) {
                path[from] = folder[from];
                from++;
            }
            path[from++] = '/';
            for (long i = 0; i <= length_of(name); i++)
                path[from + i] = name[i];
            refused = start(path, environment);
            if (refused != -ENOENT && refused != -ENOTDIR)
                result = refused;
        }
        folder += length + (folder[length] == ':');
    }
    return result;
}

__attribute__((noreturn)) static void launch(const char *path, char **environment)
{
    long length = read_file(path);
    const char *program;
    long refused;
    int in_place = 0;

    if (length == MOST_BYTES)
        fail(NO_ARGV, "too large: ", path);
    if (arguments_parse(text, (size_t) length, arguments, MOST_ARGUMENTS) < 0)
        fail(NO_ARGV, "not a JSON array of strings: ", path);
    program = arguments[0];
    for (long i = 0; program[i]; i++)
        in_place |= program[i] == '/';
    refused = in_place ? start(program, environment) : search(program, environment);
    if (refused == -ENOENT || refused == -ENOTDIR || !program[0])
        fail(NO_PROGRAM, "no such program: ", program);
    fail(NO_START, "cannot be started: ", program);
}

void bare_main(long *stack)
{
    long argc = *stack;
    char **argv = (char **) (stack + 1);
    static const char name[] = "pyvgpu-launch";
    long length, at;

    if (argc < 2)
        end(0);
    length = length_of(argv[0]);
    at = length - (long) sizeof(name) + 1;
    if (at < 0 || !is_same(argv[0] + at, name, sizeof(name)) || (at && argv[0][at - 1] != '/'))
        end(0);
    if (argc == 3 && is_same(argv[1], "-i", 3))
        copy_to(argv[2]);
    if (bare_call(__NR_faccessat, AT_FDCWD, (long) fast_exit, 0, 0) == 0)
        end(0);
    launch(argv[1], argv + argc + 1);
}
