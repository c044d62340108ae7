/* SPDX-License-Identifier: Apache-2.0 */
/* credit.h -- GPU time that a process has bought and not yet given to launches.
 *
 * Threads that launch at the same time would pass one word from core to core at every launch. So
 * each has a pocket: it takes some launches' worth out of the middle at once, and then pays from
 * there with a word of its own. Everything in pockets is credit as what is in the middle is, and is
 * counted, gathered and taken back with it; no pocket has more than a small part of what is bought
 * at once.
 *
 * Pure, without locks; zeros are no credit. A sum is exact when nobody pays meanwhile, and else as
 * if those payments had come earlier or later.
 */
#ifndef PYVGPU_CREDIT_H
#define PYVGPU_CREDIT_H

#include <stdint.h>

#include "compiler.h"

enum { CREDIT_POCKETS = 32 }; /* threads beyond that have one in common with others */

struct credit_pocket { /* processors fetch lines by twos */
    int64_t ns __attribute__((aligned(128)));
};

struct credit {
    int64_t ns __attribute__((aligned(64))); /* in the middle */
    int64_t portion_ns;                      /* that a pocket is given at once */
    struct credit_pocket pockets[CREDIT_POCKETS];
};

/* The pocket of this thread. The first one is nobody's and always empty: so whoever has no pocket
 * yet is given one when he has to go to the middle. */
extern __thread uint32_t credit_pocket __attribute__((tls_model("initial-exec")));

int credit_pay_slowly(struct credit *credit, int64_t cost_ns);

/* Pay: 0 if neither the pocket nor the middle covers it, and nothing is paid then. */
static inline int credit_pay(struct credit *credit, int64_t cost_ns)
{
    int64_t *pocket = &credit->pockets[credit_pocket].ns;

    if (likely(__atomic_sub_fetch(pocket, cost_ns, __ATOMIC_RELAXED) >= 0))
        return 1;
    __atomic_add_fetch(pocket, cost_ns, __ATOMIC_RELAXED);
    return credit_pay_slowly(credit, cost_ns);
}

/* Add what was bought, and from now on give a pocket a small part of all that is there now. */
void credit_buy(struct credit *credit, int64_t ns);

/* Add what was paid and is given back. */
static inline void credit_give_back(struct credit *credit, int64_t ns)
{
    __atomic_add_fetch(&credit->ns, ns, __ATOMIC_RELAXED);
}

/* How much there is, in the middle and in all pockets. */
int64_t credit_left(const struct credit *credit);

/* Bring all of it into the middle: how much it is. */
int64_t credit_gather(struct credit *credit);

/* Take all of it away: how much it was. */
int64_t credit_take(struct credit *credit);

#endif
