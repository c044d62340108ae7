/* SPDX-License-Identifier: Apache-2.0 */
/* test_shared_memory_carried.c -- memory shared by file descriptors stays charged while any of them
 * is open anywhere. */
#include "core/fd_marker.h"
#include "shared_memory_room.h"

#include <linux/memfd.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/syscall.h>

/* memfd_create(), which glibc 2.17 lacks. */
static int open_memory(const char *name)
{
    return (int) syscall(SYS_memfd_create, name, MFD_CLOEXEC);
}

/* Export from this process in a descriptor. */
static int carry(const struct scratch *scratch, link_t *link, uint64_t bytes)
{
    int fd = scratch_descriptor(scratch);
    uint64_t key = shared_memory_new_key(&region);

    *link = shared_memory_export(&region, key, 0, bytes);
    CHECK("it is carried", shared_memory_carry(&region, key, fd));
    return fd;
}

static void descriptor_and_its_copies_are_recognised(void)
{
    struct scratch scratch = scratch_make(0);
    struct shared_memory_match match;
    link_t links[3];
    int fds[5];

    join(&scratch);
    for (int i = 0; i < 3; i++)
        fds[i] = carry(&scratch, &links[i], (uint64_t) (i + 1) * MIB);
    fds[3] = scratch_descriptor(&scratch);
    CHECK("again", shared_memory_carry(&region, shared_memory_key_of(&region, links[1]), fds[3]));
    fds[4] = dup(fds[2]);
    for (int i = 0; i < 5; i++) {
        int which = (int[]) {0, 1, 2, 1, 2}[i];

        CHECK("found", shared_memory_match(&region, fds[i], &match));
        CHECK_EQUAL("that one", match.bytes, (uint64_t) (which + 1) * MIB);
        CHECK("its key", match.key == shared_memory_key_of(&region, links[which]));
    }
    close(fds[0]);
    CHECK("one that is closed", !shared_memory_match(&region, fds[0], &match));
    fds[0] = scratch_descriptor(&scratch);
    CHECK("one that carries nothing", !shared_memory_match(&region, fds[0], &match));
    slots_release(&region);
    for (int i = 0; i < 5; i++)
        close(fds[i]);
    scratch_remove(&scratch);
}

static void export_is_held_until_its_last_descriptor_is_closed(void)
{
    struct scratch scratch = scratch_make(0);
    link_t link;
    link_t import;
    int fds[2];
    int paid;

    join(&scratch);
    fds[0] = carry(&scratch, &link, MIB);
    fds[1] = scratch_descriptor(&scratch);
    import = shared_memory_import(&region, shared_memory_key_of(&region, link), &paid);
    CHECK("paid", paid);
    CHECK("carried by what imported it",
          shared_memory_carry(&region, shared_memory_key_of(&region, import), fds[1]));
    CHECK("held", !shared_memory_end_export(&region, link));
    close(fds[0]);
    shared_memory_end_import(&region, import);
    CHECK_EQUAL("by the other descriptor", shared_memory_collect(&region, 0, 0), 0);
    close(fds[1]);
    CHECK_EQUAL("by none", shared_memory_collect(&region, 0, 0), MIB);
    fds[0] = carry(&scratch, &link, MIB);
    close(fds[0]);
    CHECK("given up at once", shared_memory_end_export(&region, link));
    slots_release(&region);
    scratch_remove(&scratch);
}

/* A process exports in a descriptor and dies; the descriptor is put into a socket first. */
static void leave_in(const struct scratch *scratch, int socket)
{
    pid_t pid = fork();

    if (pid == 0) {
        char control[CMSG_SPACE(sizeof(int))] = {0};
        struct iovec word = {.iov_base = "x", .iov_len = 1};
        struct msghdr message = {.msg_iov = &word,
                                 .msg_iovlen = 1,
                                 .msg_control = control,
                                 .msg_controllen = sizeof(control)};
        link_t link;
        int fd;

        memset(&region, 0, sizeof(region));
        join(scratch);
        if (ledger_charge(&ledger, 0, MIB) != 0)
            _exit(1);
        fd = carry(scratch, &link, MIB);
        *CMSG_FIRSTHDR(&message) = (struct cmsghdr) {
            .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(fd))};
        memcpy(CMSG_DATA(CMSG_FIRSTHDR(&message)), &fd, sizeof(fd));
        if (sendmsg(socket, &message, 0) != 1)
            _exit(1);
        kill(getpid(), SIGKILL);
    }
    waitpid(pid, NULL, 0);
}

static void descriptor_in_a_socket_outlives_all_processes(void)
{
    struct scratch scratch = scratch_make(0);
    int sockets[2];

    CHECK("a socket", socketpair(AF_UNIX, SOCK_DGRAM, 0, sockets) == 0);
    leave_in(&scratch, sockets[0]);
    join(&scratch);
    CHECK_EQUAL("a later process finds it charged", used(), MIB);
    CHECK_EQUAL("each time", used(), MIB);
    slots_release(&region);
    join(&scratch);
    CHECK_EQUAL("and so does the next one", used(), MIB);
    close(sockets[0]);
    close(sockets[1]);
    CHECK_EQUAL("until the message is gone", used(), 0);
    slots_release(&region);
    scratch_remove(&scratch);
}

static void untracked_export_is_held_while_any_process_lives(void)
{
    struct scratch scratch = scratch_make(0);
    struct peer owner;
    struct answer made;
    link_t link;
    int ends[2];

    join(&scratch);
    CHECK("no path leads to a pipe", pipe(ends) == 0);
    link = shared_memory_export(&region, 5 << LINK_HASH_SHIFT, 0, MIB);
    CHECK("given out all the same", shared_memory_carry(&region, 5 << LINK_HASH_SHIFT, ends[1]));
    close(ends[0]);
    close(ends[1]);
    CHECK("held", !shared_memory_end_export(&region, link));
    CHECK_EQUAL("by its owner", shared_memory_collect(&region, 0, 0), 0);
    owner = start_peer(&scratch);
    made = tell(&owner, (struct order) {EXPORT, shared_memory_key("a", 1), 2 * MIB, 0});
    CHECK("by a handle without a key",
          shared_memory_lose_track(&region, shared_memory_key("a", 1)));
    CHECK("held", !tell(&owner, (struct order) {END_EXPORT, 0, 2 * MIB, made.link}).said);
    kill_peer(&owner);
    CHECK_EQUAL("by us, when its owner is dead", used(), 2 * MIB);
    slots_release(&region);
    join(&scratch);
    CHECK_EQUAL("no process was left", used(), 0);
    CHECK("nothing to carry", !shared_memory_carry(&region, shared_memory_key("a", 1), -1));
    slots_release(&region);
    scratch_remove(&scratch);
}

/* Create and close descriptors of one export as fast as possible. */
static void *give_and_close(void *argument)
{
    const struct scratch *scratch = ((void **) argument)[0];
    uint64_t key = *(uint64_t *) ((void **) argument)[1];
    const int *end = ((void **) argument)[2];

    while (!__atomic_load_n(end, __ATOMIC_RELAXED)) {
        int fd = scratch_descriptor(scratch);

        shared_memory_carry(&region, key, fd);
        close(fd);
    }
    return NULL;
}

static void concurrently_closed_descriptor_is_not_mistaken(void)
{
    struct scratch scratch = scratch_make(0);
    struct shared_memory_match match;
    pthread_t thread;
    link_t links[2];
    uint64_t key;
    unsigned wrong = 0;
    int end = 0;
    int fd;

    join(&scratch);
    links[0] = shared_memory_export(&region, shared_memory_new_key(&region), 1, 8 * MIB);
    links[1] = shared_memory_export(&region, shared_memory_new_key(&region), 0, MIB);
    fd = scratch_descriptor(&scratch);
    shared_memory_carry(&region, shared_memory_key_of(&region, links[1]), fd);
    key = shared_memory_key_of(&region, links[0]);
    pthread_create(&thread, NULL, give_and_close, (void *[]) {&scratch, &key, &end});
    for (int i = 0; i < 100000; i++)
        wrong += !shared_memory_match(&region, fd, &match) || match.bytes != MIB;
    __atomic_store_n(&end, 1, __ATOMIC_RELAXED);
    pthread_join(thread, NULL);
    CHECK_EQUAL("always the one that it carries", wrong, 0);
    close(fd);
    slots_release(&region);
    scratch_close(&region);
    scratch_remove(&scratch);
}

/* A dma-buf is such a file: its link in /proc/self/fd begins with a slash, and leads nowhere. */
static void file_that_no_path_opens_is_seen_to_close(void)
{
    struct scratch scratch = scratch_make(0);
    uint64_t key = shared_memory_key("dma-buf", 7);
    link_t first;
    link_t link;
    int fds[3];

    join(&scratch);
    fds[0] = open_memory("dmabuf");
    first = shared_memory_export(&region, key, 0, 4 * MIB);
    CHECK("a dma-buf is given out first", shared_memory_carry(&region, key, fds[0]));
    fds[1] = carry(&scratch, &link, MIB);
    CHECK("what the driver gives later is held", !shared_memory_end_export(&region, link));
    close(fds[1]);
    CHECK_EQUAL("and seen to be closed", shared_memory_collect(&region, 0, 0), MIB);
    fds[1] = open_memory("dmabuf");
    CHECK("once more, after the driver's", shared_memory_carry(&region, key, fds[1]));
    fds[2] = dup(fds[1]);
    close(fds[0]);
    close(fds[1]);
    CHECK("a copy of one is left", !shared_memory_end_export(&region, first));
    CHECK_EQUAL("so it stays charged", shared_memory_collect(&region, 0, 0), 0);
    close(fds[2]);
    CHECK_EQUAL("not looked for so early", shared_memory_collect(&region, 0, 1), 0);
    CHECK_EQUAL("until that is closed, too", shared_memory_collect(&region, 0, 0), 4 * MIB);
    first = shared_memory_export(&region, key, 0, MIB);
    fds[0] = open_memory("dmabuf");
    CHECK("exported again", shared_memory_carry(&region, key, fds[0]));
    close(fds[0]);
    CHECK("its end is seen by its free", shared_memory_end_export(&region, first));
    slots_release(&region);
    scratch_close(&region);
    scratch_remove(&scratch);
}

static void file_that_no_path_opens_outlives_its_process(void)
{
    struct scratch scratch = scratch_make(0);
    int ends[2];
    char byte;
    pid_t pid;
    int fd;

    fd = open_memory("dmabuf");
    CHECK("a pipe", pipe(ends) == 0);
    pid = fork();
    if (pid == 0) {
        uint64_t key = shared_memory_key("dma-buf", 7);

        join(&scratch);
        if (ledger_charge(&ledger, 0, MIB) != 0 || !shared_memory_export(&region, key, 0, MIB) ||
            !shared_memory_carry(&region, key, fd) || write(ends[1], "x", 1) != 1)
            _exit(1);
        kill(getpid(), SIGKILL);
    }
    CHECK("exported", read(ends[0], &byte, 1) == 1);
    waitpid(pid, NULL, 0);
    for (int i = 0; i < 2; i++) { /* also after a time without any process */
        join(&scratch);
        CHECK_EQUAL("still charged", used(), MIB);
        slots_release(&region);
    }
    close(fd);
    join(&scratch);
    CHECK_EQUAL("until it is closed", used(), 0);
    slots_release(&region);
    close(ends[0]);
    close(ends[1]);
    scratch_close(&region);
    scratch_remove(&scratch);
}

/* Open another file, whose path may not fit. */
static int open_another(const struct scratch *scratch, char which, char path[static 512])
{
    snprintf(path, 512, "%s-%c", scratch->driver, which);
    return open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
}

static void descriptors_of_several_files_are_distinguished_and_seen_to_close(void)
{
    struct scratch scratch = scratch_make(0);
    char paths[MARKER_FILES][512];
    struct shared_memory_match match;
    link_t links[MARKER_FILES];
    int fds[MARKER_FILES];

    join(&scratch);
    for (int i = 0; i < MARKER_FILES; i++) {
        uint64_t key = shared_memory_new_key(&region);

        fds[i] = open_another(&scratch, (char) ('a' + i), paths[i]);
        links[i] = shared_memory_export(&region, key, 0, (uint64_t) (i + 1) * MIB);
        CHECK("it is carried", shared_memory_carry(&region, key, fds[i]));
    }
    for (int i = 0; i < MARKER_FILES; i++) {
        CHECK("found", shared_memory_match(&region, fds[i], &match));
        CHECK_EQUAL("that one", match.bytes, (uint64_t) (i + 1) * MIB);
        CHECK("held", !shared_memory_end_export(&region, links[i]));
        CHECK_EQUAL("by its descriptor", shared_memory_collect(&region, 0, 0), 0);
        close(fds[i]);
        CHECK_EQUAL("until that is closed", shared_memory_collect(&region, 0, 0),
                    (uint64_t) (i + 1) * MIB);
    }
    links[0] = shared_memory_export(&region, shared_memory_key("more", 4), 0, MIB);
    fds[0] = scratch_descriptor(&scratch);
    CHECK("of one file more", shared_memory_carry(&region, shared_memory_key("more", 4), fds[0]));
    close(fds[0]);
    CHECK("no end is known", !shared_memory_end_export(&region, links[0]));
    CHECK_EQUAL("of its descriptors", shared_memory_collect(&region, 0, 0), 0);
    for (int i = 0; i < MARKER_FILES; i++)
        unlink(paths[i]);
    slots_release(&region);
    scratch_remove(&scratch);
}

int main(void)
{
    descriptor_and_its_copies_are_recognised();
    export_is_held_until_its_last_descriptor_is_closed();
    descriptor_in_a_socket_outlives_all_processes();
    untracked_export_is_held_while_any_process_lives();
    concurrently_closed_descriptor_is_not_mistaken();
    file_that_no_path_opens_is_seen_to_close();
    file_that_no_path_opens_outlives_its_process();
    descriptors_of_several_files_are_distinguished_and_seen_to_close();
    return check_end();
}
