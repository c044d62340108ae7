/* SPDX-License-Identifier: Apache-2.0 */
/* main.c -- `tenant FOLDER PLACE QUOTA HOW SEED` works until the board orders otherwise.
 *
 * FOLDER has the board, and the tenants' mailboxes; PLACE is this one's place on it. HOW is "long",
 * or "brief" for a child that does a few operations and ends.
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "families.h"

enum { BRIEF_OPERATIONS = 60, BRIEF_S = 60, NAP_US = 500 };

struct tenant tenant;

static struct hand hands[THREADS];

static void operate(struct hand *hand)
{
    if (hand_chance(hand, 32))
        context_work(hand);
    else if (!tenant.is_brief && hand_chance(hand, 400))
        child_work(hand);
    else if (hand->count < HAND && (!hand->count || hand_chance(hand, 2)))
        hand_take(hand);
    else
        hand_give(hand, hand_pick(hand, hand->count));
    atomic_fetch_add(&hand->board->operations, 1);
}

static void obey(struct hand *hand, enum order order)
{
    context_rest(hand);
    if (order == ORDER_CLEAR && hand->thread == 0) {
        share_receive_all(hand);
        context_search_all(hand);
    }
    hand_does(hand, "rest");
    atomic_store(&hand->board->obeyed, order);
}

static void *work(void *argument)
{
    struct hand *hand = argument;
    enum order order;

    context_begin(hand);
    while ((order = atomic_load(&tenant.board->order)) != ORDER_END) {
        if (order == ORDER_WORK)
            operate(hand);
        else if (atomic_load(&hand->board->obeyed) != order)
            obey(hand, order);
        else
            usleep(NAP_US);
        if (order == ORDER_WORK)
            atomic_store(&hand->board->obeyed, order);
    }
    if (hand_chance(hand, 2))
        context_rest(hand);
    return NULL;
}

/* It may outlive its parent, and must end by itself. */
static void work_briefly(struct hand *hand)
{
    alarm(BRIEF_S);
    context_begin(hand);
    for (unsigned i = hand_pick(hand, BRIEF_OPERATIONS); i > 0; i--)
        operate(hand);
    if (hand_chance(hand, 2))
        raise(SIGKILL);
    if (hand_chance(hand, 2))
        hand_give_all(hand);
}

static void deal(struct hand *hand, unsigned thread)
{
    hand->board = tenant.is_brief ? calloc(1, sizeof(*hand->board))
                                  : &tenant.board->threads[tenant.place][thread];
    hand->place = tenant.place;
    hand->thread = thread;
    hand->random = (tenant.seed * THREADS + thread) * UINT64_C(0x9e3779b97f4a7c15) | 1;
    hand->device = (CUdevice) (tenant.place % DEVICES);
    if (!hand->board)
        exit(3);
}

int main(int count, char **arguments)
{
    pthread_t others[THREADS];

    if (count != 6) {
        fputs("usage: tenant FOLDER PLACE QUOTA HOW SEED\n", stderr);
        return 2;
    }
    tenant.arguments = arguments;
    tenant.place = (unsigned) atoi(arguments[2]);
    tenant.quota = strtoull(arguments[3], NULL, 10);
    tenant.is_brief = strcmp(arguments[4], "brief") == 0;
    tenant.seed = strtoull(arguments[5], NULL, 10);
    tenant.board = board_open(arguments[1]);
    if (!tenant.is_brief)
        board_die_with_keeper(tenant.board);
    for (unsigned thread = 0; thread < THREADS; thread++)
        deal(&hands[thread], thread);
    if (cuInit(0) != CUDA_SUCCESS)
        hand_complain(&hands[0], "cuInit", 1);
    if (tenant.is_brief) {
        work_briefly(&hands[0]);
        return 0;
    }
    share_begin();
    for (unsigned thread = 1; thread < THREADS; thread++)
        if (pthread_create(&others[thread], NULL, work, &hands[thread]))
            hand_complain(&hands[thread], "pthread_create", 1);
    work(&hands[0]);
    for (unsigned thread = 1; thread < THREADS; thread++)
        pthread_join(others[thread], NULL);
    return 0;
}
