/* SPDX-License-Identifier: Apache-2.0 */
/* credit.c -- credit in the middle and in pockets; see credit.h. */
#include "credit.h"

enum {
    PORTIONS = 64, /* of what is there when some was bought */
    LAUNCHES = 4,  /* that a portion must be enough for, to be worth a pocket */
};

__thread uint32_t credit_pocket;

static uint32_t threads; /* that were given a pocket */

static void find_pocket(void)
{
    uint32_t thread = __atomic_fetch_add(&threads, 1, __ATOMIC_RELAXED);

    credit_pocket = 1 + thread % (CREDIT_POCKETS - 1);
}

/* Take the cost out of the middle, and a portion for the launches that follow. */
int credit_pay_slowly(struct credit *credit, int64_t cost_ns)
{
    int64_t portion = __atomic_load_n(&credit->portion_ns, __ATOMIC_RELAXED);
    int64_t middle = __atomic_load_n(&credit->ns, __ATOMIC_RELAXED);
    int64_t taken;

    do {
        if (middle < cost_ns)
            return 0;
        taken = cost_ns;
        if (portion >= LAUNCHES * cost_ns && middle - cost_ns >= portion)
            taken += portion;
    } while (!__atomic_compare_exchange_n(&credit->ns, &middle, middle - taken, 1, __ATOMIC_RELAXED,
                                          __ATOMIC_RELAXED));
    if (!credit_pocket)
        find_pocket();
    if (taken > cost_ns)
        __atomic_add_fetch(&credit->pockets[credit_pocket].ns, taken - cost_ns, __ATOMIC_RELAXED);
    return 1;
}

void credit_buy(struct credit *credit, int64_t ns)
{
    int64_t middle = __atomic_add_fetch(&credit->ns, ns, __ATOMIC_RELAXED);

    __atomic_store_n(&credit->portion_ns, middle / PORTIONS, __ATOMIC_RELAXED);
}

/* Whoever finds too little in a word has it below 0 for a moment. */
static int64_t look_into(const int64_t *word)
{
    int64_t ns = __atomic_load_n(word, __ATOMIC_RELAXED);

    return ns > 0 ? ns : 0;
}

static int64_t empty(int64_t *word)
{
    int64_t ns = __atomic_load_n(word, __ATOMIC_RELAXED);

    while (ns > 0 &&
           !__atomic_compare_exchange_n(word, &ns, 0, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
    return ns > 0 ? ns : 0;
}

/* Pockets that somebody may have. */
static uint32_t pockets_given(void)
{
    uint32_t given = __atomic_load_n(&threads, __ATOMIC_RELAXED);

    return given < CREDIT_POCKETS - 1 ? given + 1 : CREDIT_POCKETS;
}

int64_t credit_left(const struct credit *credit)
{
    uint32_t given = pockets_given();
    int64_t ns = look_into(&credit->ns);

    for (uint32_t i = 1; i < given; i++)
        ns += look_into(&credit->pockets[i].ns);
    return ns;
}

static int64_t empty_pockets(struct credit *credit)
{
    uint32_t given = pockets_given();
    int64_t ns = 0;

    for (uint32_t i = 1; i < given; i++)
        ns += empty(&credit->pockets[i].ns);
    return ns;
}

int64_t credit_gather(struct credit *credit)
{
    int64_t ns = empty_pockets(credit);

    return ns ? __atomic_add_fetch(&credit->ns, ns, __ATOMIC_RELAXED) : look_into(&credit->ns);
}

int64_t credit_take(struct credit *credit)
{
    return empty_pockets(credit) + empty(&credit->ns);
}
