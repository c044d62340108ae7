/* SPDX-License-Identifier: Apache-2.0 */
/* test_links.c -- what is shared stays charged while somebody has it open, whoever dies. */
#include "check.h"
#include "ledger.h"
#include "links.h"
#include "scratch_region.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

#define MIB (UINT64_C(1) << 20)

static struct region region;
static struct ledger ledger = {.region = &region, .limit = {100 * MIB, 100 * MIB}};

static void join(const struct scratch *scratch)
{
    struct region_reason reason;

    if (scratch_open(scratch, &region, &reason) || region_claim(&region, 0, &reason)) {
        fprintf(stderr, "%s\n", reason.text);
        exit(2);
    }
}

/* A process of the region that does what it is told, one order at a time, until it is killed. */
struct peer {
    pid_t pid;
    int orders;
    int answers;
};

struct order {
    enum { EXPORT, END_EXPORT, IMPORT, END_IMPORT, COLLECT } what;
    uint64_t key;
    uint64_t bytes;
    link_t link;
};

struct answer {
    link_t link;
    int said; /* paid, or given up */
    uint64_t bytes;
};

static struct answer obey(const struct order *order)
{
    struct answer answer = {0};

    switch (order->what) {
    case EXPORT:
        if (ledger_charge(&ledger, 0, order->bytes) == 0)
            answer.link = links_export(&region, order->key, 0, order->bytes);
        break;
    case END_EXPORT:
        answer.said = links_end_export(&region, order->link);
        if (answer.said)
            ledger_refund(&ledger, 0, order->bytes);
        break;
    case IMPORT:
        answer.link = links_import(&region, order->key, &answer.said);
        break;
    case END_IMPORT:
        links_end_import(&region, order->link);
        break;
    case COLLECT:
        answer.bytes = links_collect(&region, 0);
        ledger_refund(&ledger, 0, answer.bytes);
        break;
    }
    return answer;
}

static struct peer start_peer(const struct scratch *scratch)
{
    int orders[2];
    int answers[2];
    struct peer peer;

    if (pipe(orders) != 0 || pipe(answers) != 0)
        exit(2);
    peer = (struct peer) {fork(), orders[1], answers[0]};
    if (peer.pid == 0) {
        struct order order;
        struct answer answer = {0};

        close(orders[1]);
        join(scratch);
        if (write(answers[1], &answer, sizeof(answer)) != sizeof(answer))
            _exit(1);
        while (read(orders[0], &order, sizeof(order)) == sizeof(order)) {
            answer = obey(&order);
            if (write(answers[1], &answer, sizeof(answer)) != sizeof(answer))
                _exit(1);
        }
        _exit(0);
    }
    close(orders[0]);
    close(answers[1]);
    if (read(peer.answers, &(struct answer) {0}, sizeof(struct answer)) != sizeof(struct answer))
        exit(2);
    return peer;
}

static struct answer tell(const struct peer *peer, struct order order)
{
    struct answer answer = {0};

    if (write(peer->orders, &order, sizeof(order)) != sizeof(order) ||
        read(peer->answers, &answer, sizeof(answer)) != sizeof(answer))
        exit(2);
    return answer;
}

static void kill_peer(const struct peer *peer)
{
    kill(peer->pid, SIGKILL);
    waitpid(peer->pid, NULL, 0);
    close(peer->orders);
    close(peer->answers);
}

/* What is charged once the dead are looked for, which is at most every 50 ms otherwise. */
static uint64_t used(void)
{
    region.usage->scanned_ns = 0;
    return ledger_used(&ledger, 0);
}

static void an_import_is_paid_while_an_export_of_its_key_stands(void)
{
    struct scratch scratch = scratch_make(0);
    struct peer owner;
    struct answer made;
    link_t import;
    link_t again;
    int paid;

    join(&scratch);
    owner = start_peer(&scratch);
    CHECK("a place", links_import(&region, 77, &paid) != 0);
    CHECK("nobody exports it", !paid);
    made = tell(&owner, (struct order) {EXPORT, links_key("a", 1), 2 * MIB, 0});
    CHECK("exported", made.link != 0);
    import = links_import(&region, links_key("b", 1), &paid);
    CHECK("another key", import && !paid);
    links_end_import(&region, import);
    import = links_import(&region, links_key("a", 1), &paid);
    CHECK("paid by its owner", import && paid);
    CHECK("its free is not the end of it",
          !tell(&owner, (struct order) {END_EXPORT, 0, 2 * MIB, made.link}).said);
    CHECK_EQUAL("it stays charged", used(), 2 * MIB);
    CHECK_EQUAL("nothing to collect yet", tell(&owner, (struct order) {.what = COLLECT}).bytes, 0);
    again = links_import(&region, links_key("a", 1), &paid);
    CHECK("who opens it again does not pay", again && paid);
    links_end_import(&region, import);
    CHECK_EQUAL("the other still has it", tell(&owner, (struct order) {.what = COLLECT}).bytes, 0);
    links_end_import(&region, again);
    CHECK_EQUAL("the last has closed it", tell(&owner, (struct order) {.what = COLLECT}).bytes,
                2 * MIB);
    CHECK_EQUAL("once", tell(&owner, (struct order) {.what = COLLECT}).bytes, 0);
    CHECK_EQUAL("nothing is charged", used(), 0);
    kill_peer(&owner);
    region_release(&region);
    scratch_remove(&scratch);
}

static void what_nobody_has_open_ends_with_its_free(void)
{
    struct scratch scratch = scratch_make(0);
    link_t link;
    link_t import;
    int paid;

    join(&scratch);
    link = links_export(&region, 5 << LINK_HASH_SHIFT, 0, MIB);
    CHECK("given up", links_end_export(&region, link));
    CHECK_EQUAL("its place is used again", links_export(&region, 5 << LINK_HASH_SHIFT, 1, MIB),
                link);
    import = links_import(&region, 5 << LINK_HASH_SHIFT, &paid);
    CHECK("a process may import its own", import && paid);
    CHECK("and then holds it", !links_end_export(&region, link));
    links_end_import(&region, import);
    CHECK_EQUAL("on its own device", links_collect(&region, 0), 0);
    CHECK_EQUAL("alone", links_collect(&region, 1), MIB);
    link = links_export(&region, 6 << LINK_HASH_SHIFT, 0, MIB);
    links_cancel_export(&region, link);
    links_import(&region, 6 << LINK_HASH_SHIFT, &paid);
    CHECK("an export that failed matches nothing", !paid);
    region_release(&region);
    CHECK_EQUAL("nothing is left of it", region.links[0].word | region.links[1].word, 0);
    scratch_remove(&scratch);
}

static void a_dead_owner_is_charged_until_the_last_import_ends(void)
{
    struct scratch scratch = scratch_make(0);
    struct peer owner;
    struct peer importer;
    struct answer opened;
    struct answer first;
    int slot;

    join(&scratch);
    owner = start_peer(&scratch);
    importer = start_peer(&scratch);
    slot = region.slot + 1;
    tell(&owner, (struct order) {EXPORT, links_key("a", 1), 2 * MIB, 0});
    tell(&owner, (struct order) {EXPORT, links_key("b", 1), 4 * MIB, 0});
    first = tell(&importer, (struct order) {.what = IMPORT, .key = links_key("a", 1)});
    CHECK("paid", first.said);
    kill_peer(&owner);
    for (int i = 0; i < 3; i++)
        CHECK_EQUAL("what is open of the dead, however often one looks", used(), 2 * MIB);
    CHECK_EQUAL("in its slot", region.usage->charged[0][slot], 2 * MIB);
    CHECK_EQUAL("and nowhere else", region.usage->orphaned[0], 0);
    owner = start_peer(&scratch);
    CHECK_EQUAL("its slot is not given again", region.usage->charged[0][slot], 2 * MIB);
    opened = tell(&owner, (struct order) {.what = IMPORT, .key = links_key("a", 1)});
    CHECK("another may open it, paid", opened.said);
    tell(&importer, (struct order) {.what = END_IMPORT, .link = first.link});
    kill_peer(&importer);
    CHECK_EQUAL("that one has it", used(), 2 * MIB);
    CHECK_EQUAL("the limit is exact", ledger_charge(&ledger, 0, 98 * MIB + 1), (uint64_t) -ENOMEM);
    kill_peer(&owner);
    CHECK_EQUAL("a dead importer has nothing", used(), 0);
    CHECK_EQUAL("the slot is free", region.usage->slots[slot].pid, 0);
    CHECK_EQUAL("and sums are short again", region.usage->high_water, 1);
    region_release(&region);
    scratch_remove(&scratch);
}

static void an_orphan_s_slot_is_given_to_nobody(void)
{
    struct scratch scratch = scratch_make(0);
    struct flock others = {.l_type = F_WRLCK, .l_start = USAGE_LOCK_SLOT + 2, .l_len = 1022};
    struct region_reason reason;
    struct region late;
    struct peer owner;
    link_t import;
    int paid;
    int fd;

    join(&scratch);
    owner = start_peer(&scratch);
    tell(&owner, (struct order) {EXPORT, links_key("a", 1), MIB, 0});
    import = links_import(&region, links_key("a", 1), &paid);
    kill_peer(&owner);
    fd = open(scratch.usage, O_RDWR);
    CHECK("all other slots are taken", fcntl(fd, F_OFD_SETLK, &others) == 0);
    CHECK_EQUAL("opens", scratch_open(&scratch, &late, &reason), REGION_OK);
    CHECK_EQUAL("no slot", region_claim(&late, 0, &reason), REGION_FULL);
    CHECK("and it is said why", strstr(reason.text, "ended processes shared"));
    CHECK_EQUAL("it stays charged", used(), MIB);
    links_end_import(&region, import);
    CHECK_EQUAL("now there is one", region_claim(&late, 0, &reason), REGION_OK);
    CHECK_EQUAL("that slot", late.slot, 1);
    region_release(&late);
    close(fd);
    scratch_close(&late);
    scratch_remove(&scratch);
}

/* An export of this process, in a descriptor. */
static int carry(const struct scratch *scratch, link_t *link, uint64_t bytes)
{
    int fd = scratch_descriptor(scratch);
    uint64_t key = links_new_key(&region);

    *link = links_export(&region, key, 0, bytes);
    CHECK("it is carried", links_carry(&region, key, fd));
    return fd;
}

static void a_descriptor_is_known_again_and_so_are_its_copies(void)
{
    struct scratch scratch = scratch_make(0);
    struct links_match match;
    link_t links[3];
    int fds[5];

    join(&scratch);
    for (int i = 0; i < 3; i++)
        fds[i] = carry(&scratch, &links[i], (uint64_t) (i + 1) * MIB);
    fds[3] = scratch_descriptor(&scratch);
    CHECK("again", links_carry(&region, links_key_of(&region, links[1]), fds[3]));
    fds[4] = dup(fds[2]);
    for (int i = 0; i < 5; i++) {
        int which = (int[]) {0, 1, 2, 1, 2}[i];

        CHECK("found", links_match(&region, fds[i], &match));
        CHECK_EQUAL("that one", match.bytes, (uint64_t) (which + 1) * MIB);
        CHECK("its key", match.key == links_key_of(&region, links[which]));
    }
    close(fds[0]);
    CHECK("one that is closed", !links_match(&region, fds[0], &match));
    fds[0] = scratch_descriptor(&scratch);
    CHECK("one that carries nothing", !links_match(&region, fds[0], &match));
    region_release(&region);
    for (int i = 0; i < 5; i++)
        close(fds[i]);
    scratch_remove(&scratch);
}

static void an_export_is_held_until_its_last_descriptor_is_closed(void)
{
    struct scratch scratch = scratch_make(0);
    link_t link;
    link_t import;
    int fds[2];
    int paid;

    join(&scratch);
    fds[0] = carry(&scratch, &link, MIB);
    fds[1] = scratch_descriptor(&scratch);
    import = links_import(&region, links_key_of(&region, link), &paid);
    CHECK("paid", paid);
    CHECK("carried by what imported it",
          links_carry(&region, links_key_of(&region, import), fds[1]));
    CHECK("held", !links_end_export(&region, link));
    close(fds[0]);
    links_end_import(&region, import);
    CHECK_EQUAL("by the other descriptor", links_collect(&region, 0), 0);
    close(fds[1]);
    CHECK_EQUAL("by none", links_collect(&region, 0), MIB);
    fds[0] = carry(&scratch, &link, MIB);
    close(fds[0]);
    CHECK("given up at once", links_end_export(&region, link));
    region_release(&region);
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

static void a_descriptor_in_a_socket_outlives_all_processes(void)
{
    struct scratch scratch = scratch_make(0);
    int sockets[2];

    CHECK("a socket", socketpair(AF_UNIX, SOCK_DGRAM, 0, sockets) == 0);
    leave_in(&scratch, sockets[0]);
    join(&scratch);
    CHECK_EQUAL("who comes later finds it charged", used(), MIB);
    CHECK_EQUAL("however often he looks", used(), MIB);
    region_release(&region);
    join(&scratch);
    CHECK_EQUAL("and who comes then", used(), MIB);
    close(sockets[0]);
    close(sockets[1]);
    CHECK_EQUAL("until the message is gone", used(), 0);
    region_release(&region);
    scratch_remove(&scratch);
}

static void what_has_no_known_end_is_held_while_anybody_lives(void)
{
    struct scratch scratch = scratch_make(0);
    struct peer owner;
    struct answer made;
    link_t link;
    int ends[2];

    join(&scratch);
    CHECK("no path leads to a pipe", pipe(ends) == 0);
    link = links_export(&region, 5 << LINK_HASH_SHIFT, 0, MIB);
    CHECK("given out all the same", links_carry(&region, 5 << LINK_HASH_SHIFT, ends[1]));
    close(ends[0]);
    close(ends[1]);
    CHECK("held", !links_end_export(&region, link));
    CHECK_EQUAL("by its owner", links_collect(&region, 0), 0);
    owner = start_peer(&scratch);
    made = tell(&owner, (struct order) {EXPORT, links_key("a", 1), 2 * MIB, 0});
    CHECK("by a handle that tells nobody its key", links_lose_track(&region, links_key("a", 1)));
    CHECK("held", !tell(&owner, (struct order) {END_EXPORT, 0, 2 * MIB, made.link}).said);
    kill_peer(&owner);
    CHECK_EQUAL("by us, when its owner is dead", used(), 2 * MIB);
    region_release(&region);
    join(&scratch);
    CHECK_EQUAL("nobody was left", used(), 0);
    CHECK("nothing to carry", !links_carry(&region, links_key("a", 1), -1));
    region_release(&region);
    scratch_remove(&scratch);
}

/* Gives out descriptors of one export and closes them, as fast as it can. */
static void *give_and_close(void *argument)
{
    const struct scratch *scratch = ((void **) argument)[0];
    uint64_t key = *(uint64_t *) ((void **) argument)[1];
    const int *end = ((void **) argument)[2];

    while (!__atomic_load_n(end, __ATOMIC_RELAXED)) {
        int fd = scratch_descriptor(scratch);

        links_carry(&region, key, fd);
        close(fd);
    }
    return NULL;
}

static void a_descriptor_that_is_closed_meanwhile_is_not_taken_for_another(void)
{
    struct scratch scratch = scratch_make(0);
    struct links_match match;
    pthread_t thread;
    link_t links[2];
    uint64_t key;
    unsigned wrong = 0;
    int end = 0;
    int fd;

    join(&scratch);
    links[0] = links_export(&region, links_new_key(&region), 1, 8 * MIB);
    links[1] = links_export(&region, links_new_key(&region), 0, MIB);
    fd = scratch_descriptor(&scratch);
    links_carry(&region, links_key_of(&region, links[1]), fd);
    key = links_key_of(&region, links[0]);
    pthread_create(&thread, NULL, give_and_close, (void *[]) {&scratch, &key, &end});
    for (int i = 0; i < 100000; i++)
        wrong += !links_match(&region, fd, &match) || match.bytes != MIB;
    __atomic_store_n(&end, 1, __ATOMIC_RELAXED);
    pthread_join(thread, NULL);
    CHECK_EQUAL("always the one that it carries", wrong, 0);
    close(fd);
    region_release(&region);
    scratch_close(&region);
    scratch_remove(&scratch);
}

static void a_full_table_refuses(void)
{
    struct scratch scratch = scratch_make(0);
    link_t last = 0;
    int paid = 1;

    join(&scratch);
    for (unsigned i = 0; i < REGION_LINKS; i++)
        last = links_export(&region, links_key(&i, sizeof(i)), 0, 1);
    CHECK_EQUAL("every place is used", last, REGION_LINKS);
    CHECK_EQUAL("no export", links_export(&region, 1, 0, 1), 0);
    CHECK("no import", !links_import(&region, links_key(&(unsigned) {3}, 4), &paid) && !paid);
    region_release(&region);
    join(&scratch);
    CHECK_EQUAL("and all come back", links_export(&region, 1, 0, 1), 1);
    region_release(&region);
    scratch_remove(&scratch);
}

static void files_of_layout_1_hold_their_limit_and_share_nothing(void)
{
    struct scratch scratch = scratch_make(0);
    struct quota_limits limits;
    int paid = 1;

    scratch_make_old(&scratch, 5 * MIB);
    join(&scratch);
    CHECK("limits are valid", region_limits(region.quota, &limits));
    CHECK_EQUAL("and what was written", limits.devices[0].vmemory, 5 * MIB);
    CHECK_EQUAL("nothing was measured", region.extra_total[0], 0);
    region.usage->orphaned[0] = 99 * MIB;
    CHECK_EQUAL("what an old shim left counts", ledger_charge(&ledger, 0, 2 * MIB),
                (uint64_t) -ENOMEM);
    CHECK_EQUAL("no more than that", ledger_charge(&ledger, 0, MIB), 0);
    CHECK_EQUAL("no export", links_export(&region, 1, 0, MIB), 0);
    CHECK("no import", !links_import(&region, 1, &paid) && !paid);
    CHECK_EQUAL("nothing to collect", links_collect(&region, 0), 0);
    CHECK_EQUAL("the dead leave nothing", links_orphaned(&region, 0, 0), 0);
    region_release(&region);
    CHECK_EQUAL("a slot given back holds nothing", used(), 99 * MIB);
    scratch_close(&region);
    scratch_remove(&scratch);
}

int main(void)
{
    files_of_layout_1_hold_their_limit_and_share_nothing();
    an_import_is_paid_while_an_export_of_its_key_stands();
    what_nobody_has_open_ends_with_its_free();
    a_dead_owner_is_charged_until_the_last_import_ends();
    an_orphan_s_slot_is_given_to_nobody();
    a_descriptor_is_known_again_and_so_are_its_copies();
    an_export_is_held_until_its_last_descriptor_is_closed();
    a_descriptor_in_a_socket_outlives_all_processes();
    what_has_no_known_end_is_held_while_anybody_lives();
    a_descriptor_that_is_closed_meanwhile_is_not_taken_for_another();
    a_full_table_refuses();
    return check_end();
}
