/* SPDX-License-Identifier: Apache-2.0 */
/* test_peek.c -- reading a mapped file that another process truncates. */
#include "arbiter/peek.h"
#include "check.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 65536, SIZE = 4 * PAGE }; /* a page, or some */

static int new_file(uint64_t value)
{
    FILE *file = tmpfile();
    int fd = dup(fileno(file));

    fclose(file);
    for (size_t at = 0; at < SIZE; at += sizeof(value))
        if (pwrite(fd, &value, sizeof(value), (off_t) at) != sizeof(value))
            abort();
    return fd;
}

static void test_file_content_is_read(void)
{
    struct peek peek = {0};
    uint64_t seen[8] = {0};
    uint64_t changed = 8;
    int fd = new_file(7);

    CHECK("nothing is seen of what is not open", !peek_at(&peek, seen, 8, 0));
    CHECK("opened", peek_open(&peek, fd, SIZE));
    CHECK("seen", peek_at(&peek, seen, sizeof(seen), PAGE));
    CHECK_EQUAL("as it is", seen[7], 7);
    CHECK_EQUAL("written", pwrite(fd, &changed, sizeof(changed), PAGE), sizeof(changed));
    CHECK("seen", peek_at(&peek, seen, sizeof(seen), PAGE));
    CHECK_EQUAL("as it is now", seen[0], 8);
    CHECK("up to the end", peek_at(&peek, seen, sizeof(seen), SIZE - sizeof(seen)));
    CHECK("not beyond it", !peek_at(&peek, seen, sizeof(seen), SIZE - 8));
    CHECK("nor far away", !peek_at(&peek, seen, sizeof(seen), SIZE_MAX - 7));
    peek_close(&peek);
    CHECK("nor when it is closed", !peek_at(&peek, seen, 8, 0));
    close(fd);
}

static void test_truncated_file_fails_only_the_read(void)
{
    struct peek peek;
    uint64_t seen[8];
    int fd = new_file(7);

    CHECK("opened", peek_open(&peek, fd, SIZE));
    for (int round = 0; round < 3; round++) {
        CHECK_EQUAL("cut", ftruncate(fd, PAGE), 0);
        CHECK("what is left is seen", peek_at(&peek, seen, sizeof(seen), PAGE - sizeof(seen)));
        CHECK("what is gone is not", !peek_at(&peek, seen, sizeof(seen), 2 * PAGE));
        CHECK("nor what begins before the end", !peek_at(&peek, seen, sizeof(seen), PAGE - 8));
        CHECK_EQUAL("grown", ftruncate(fd, SIZE), 0);
        CHECK("and seen again", peek_at(&peek, seen, sizeof(seen), 2 * PAGE));
        CHECK_EQUAL("as nothing", seen[0], 0);
    }
    peek_close(&peek);
    close(fd);
}

static void test_unrelated_bus_error_ends_the_program(void)
{
    int fd = new_file(7);
    int status;
    pid_t child = fork();

    if (child == 0) {
        struct peek peek;
        uint64_t seen;
        const volatile char *gone = mmap(NULL, SIZE, PROT_READ, MAP_SHARED, fd, 0);

        if (!peek_open(&peek, fd, SIZE) || !peek_at(&peek, &seen, 8, 0) || ftruncate(fd, 0) != 0)
            _exit(2);
        _exit(gone[PAGE]);
    }
    CHECK_EQUAL("it ended", waitpid(child, &status, 0), child);
    CHECK("by that", WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
    close(fd);
}

int main(void)
{
    test_file_content_is_read();
    test_truncated_file_fails_only_the_read();
    if (!check_emulated("an emulator of processes maps files by itself"))
        test_unrelated_bus_error_ends_the_program();
    return check_end();
}
