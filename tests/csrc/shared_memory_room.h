/* SPDX-License-Identifier: Apache-2.0 */
/* shared_memory_room.h -- fixture: a region with this process, and peers that share memory and are
 * killed.
 */
#ifndef PYVGPU_TESTS_LINKS_ROOM_H
#define PYVGPU_TESTS_LINKS_ROOM_H

#include "check.h"
#include "core/ledger.h"
#include "core/shared_memory.h"
#include "scratch_region.h"

#include <signal.h>
#include <sys/wait.h>

#define MIB (UINT64_C(1) << 20)

static struct region region;
static struct ledger ledger = {.region = &region, .generation = 1, .limit = {100 * MIB, 100 * MIB}};

static inline void join(const struct scratch *scratch)
{
    struct region_reason reason;

    if (scratch_open(scratch, &region, &reason) || slots_claim(&region, 0, &reason)) {
        fprintf(stderr, "%s\n", reason.text);
        exit(2);
    }
}

/* A process of the region that executes orders, one at a time, until it is killed. */
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

static inline struct answer obey(const struct order *order)
{
    struct answer answer = {0};

    switch (order->what) {
    case EXPORT:
        if (ledger_charge(&ledger, 0, order->bytes) == 0)
            answer.link = shared_memory_export(&region, order->key, 0, order->bytes);
        break;
    case END_EXPORT:
        answer.said = shared_memory_end_export(&region, order->link);
        if (answer.said)
            ledger_refund(&ledger, 0, order->bytes);
        break;
    case IMPORT:
        answer.link = shared_memory_import(&region, order->key, &answer.said);
        break;
    case END_IMPORT:
        shared_memory_end_import(&region, order->link);
        break;
    case COLLECT:
        answer.bytes = shared_memory_collect(&region, 0, 0);
        ledger_refund(&ledger, 0, answer.bytes);
        break;
    }
    return answer;
}

static inline struct peer start_peer(const struct scratch *scratch)
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

static inline struct answer tell(const struct peer *peer, struct order order)
{
    struct answer answer = {0};

    if (write(peer->orders, &order, sizeof(order)) != sizeof(order) ||
        read(peer->answers, &answer, sizeof(answer)) != sizeof(answer))
        exit(2);
    return answer;
}

static inline void kill_peer(const struct peer *peer)
{
    kill(peer->pid, SIGKILL);
    waitpid(peer->pid, NULL, 0);
    close(peer->orders);
    close(peer->answers);
}

/* The sum charged, after an immediate reap of dead processes (otherwise at most every 50 ms). */
static inline uint64_t used(void)
{
    region.usage->scanned_ns = 0;
    return ledger_used(&ledger, 0);
}

#endif
