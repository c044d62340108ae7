/* SPDX-License-Identifier: Apache-2.0 */
/* costs.h -- what launches cost: GPU time by kernel and grid, graph, or kind and size of a copy.
 *
 * A launch is paid before it runs, with what launches of its key took before. Some are measured;
 * each measurement stands for the launches since the one before it, so that what was paid wrongly
 * is corrected for all of them. Measured alone, a time is what it says, and a cost becomes certain.
 * Measured beside other processes it has their turns in it, and nobody knows how many: then it only
 * says whether what is certain can still be true, and until then there is an estimate. In one of
 * several streams it may have waited for the others, or run beside them: what is known stays as
 * long as it is between the two.
 *
 * Pure, without locks, and racy by design: two threads may lose a count or a measurement, and a
 * key may push out another; never does a cost become wild.
 */
#ifndef PYVGPU_COSTS_H
#define PYVGPU_COSTS_H

#include <stdint.h>

#include "compiler.h"

#define COSTS_BITS     11
#define COSTS_GUESS_NS INT64_C(20000)  /* for a kernel that was never seen */
#define COSTS_LONG_NS  INT64_C(250000) /* from here on every launch is measured */

struct cost {
    uint64_t key; /* 0: free */
    int64_t cost_ns;
    int64_t alone_ns;     /* as it was measured last, or several times, without others */
    int64_t mean_ns;      /* of what measurements beside others say */
    int32_t left;         /* launches until the next is measured */
    int32_t period;       /* what left began with */
    uint32_t samples;     /* 0: the cost is a guess */
    uint32_t means;       /* of them, in mean_ns */
    uint32_t doubts;      /* measurements in a row that were too long to be believed */
    uint32_t doubted;     /* launches for which these stand */
    uint32_t guessed;     /* launches under way that paid the guess */
    uint32_t measured;    /* and others that are being measured */
    uint32_t alones;      /* measurements alone, since it was last wrong */
    uint32_t equals;      /* of them in a row, that say the same */
    uint32_t varies;      /* times that they did not, since they did for long */
    uint32_t leasts;      /* short measurements beside others that say the same */
    uint32_t others;      /* measurements beside others, since it was last wrong */
    uint32_t estimates;   /* launches since then that were paid by an estimate, */
    int64_t estimated_ns; /* and with how much in the end */
};

struct costs {
    struct cost entries[1 << COSTS_BITS] __attribute__((aligned(64)));
    uint32_t guessed; /* launches under way of all keys that paid a guess */
};

/* What a launch costs. It is measured unless stands_for is 0. */
struct costs_quote {
    int64_t cost_ns;
    uint32_t stands_for; /* launches for which its measurement is to speak; or COSTS_CROWDED */
};

/* Nothing is paid and nothing may be launched yet: its like is under way, and nobody knows how
 * long that takes. See something finished, then ask again; or costs_ask_anyway(). */
#define COSTS_CROWDED UINT32_MAX
#define COSTS_GUESSED (UINT32_C(1) << 31) /* a bit in stands_for: nothing like it was ever seen */

/* The launches before it are paid otherwise meanwhile. */
static inline void costs_stand_alone(struct costs_quote *quote)
{
    if (quote->stands_for && !(quote->stands_for & COSTS_GUESSED))
        quote->stands_for = 1;
}

struct costs_sample {
    int64_t paid_ns;     /* the quote's cost_ns */
    int64_t elapsed_ns;  /* between its events; below 0: not known, or it was never begun */
    int64_t queued_ns;   /* of that, while others of its process were seen to be before it */
    uint32_t rate;       /* clock_rate() between them */
    uint32_t sharers;    /* clock_sharers() */
    int alone;           /* clock_alone() */
    int crowded;         /* others of its process may have been before it without being seen */
    uint32_t stands_for; /* the quote's */
};

/* The key of a handle and something that goes with it: blocks, a kind and size class. */
static inline uint64_t costs_key(uint64_t handle, uint64_t detail)
{
    uint64_t key = (handle ^ detail * UINT64_C(0x9e3779b97f4a7c15)) * UINT64_C(0xd6e8feb86659fd93);

    return (key ^ key >> 32) | UINT64_C(1) << 32;
}

struct costs_quote costs_look(struct costs *costs, uint64_t key, int64_t guess_ns);

/* Of many launches until the next is measured, one is counted for so many, drawn by lot: so threads
 * that launch the same do not pass its entry from core to core each time. The last few are counted
 * one by one. */
#define COSTS_LOTS 32
#define COSTS_LAST 8

extern __thread uint32_t costs_lot __attribute__((tls_model("initial-exec")));

static inline int costs_draw(void)
{
    uint32_t lot = costs_lot * 1664525u + 1013904223u;

    costs_lot = lot;
    return lot < UINT32_MAX / COSTS_LOTS;
}

/* What the next launch of *key* costs; *guess_ns* if it was never seen. A quote with stands_for
 * comes back to costs_learn() in any case, unless it was COSTS_CROWDED. */
static inline struct costs_quote costs_ask(struct costs *costs, uint64_t key, int64_t guess_ns)
{
    struct cost *entry = &costs->entries[key >> (64 - COSTS_BITS)];

    if (likely(__atomic_load_n(&entry->key, __ATOMIC_RELAXED) == key)) {
        int32_t left = __atomic_load_n(&entry->left, __ATOMIC_RELAXED);

        if (likely(left > COSTS_LAST)) {
            if (unlikely(costs_draw()))
                __atomic_store_n(&entry->left, left - COSTS_LOTS, __ATOMIC_RELAXED);
            return (struct costs_quote) {__atomic_load_n(&entry->cost_ns, __ATOMIC_RELAXED), 0};
        }
    }
    return costs_look(costs, key, guess_ns);
}

/* Learn from a measurement; what was paid too little (below 0: too much), for all the launches
 * that it stands for. */
int64_t costs_learn(struct costs *costs, uint64_t key, const struct costs_sample *sample);

/* What is known of *key*. */
struct costs_known {
    int64_t cost_ns; /* 0: it was never measured */
    int certain;
};

struct costs_known costs_know(struct costs *costs, uint64_t key);

/* Whether it was known so badly before that what launches paid by it says nothing: it is certain
 * now, or far less. */
int costs_know_better(const struct costs_known *before, const struct costs_known *now);

/* Now that it is: what long launches of *key* were charged too much meanwhile, as it has turned
 * out; said once. */
int64_t costs_settle(struct costs *costs, uint64_t key);

/* Whether the cost of *key* is uncertain, and would not be if it were measured alone. */
int costs_want_quiet(struct costs *costs, uint64_t key);

/* What is certain cannot be true, of some key. */
void costs_distrust(struct costs *costs);

/* The same where its like is not seen to finish: it is taken to be long. */
struct costs_quote costs_ask_anyway(struct costs *costs, uint64_t key, int64_t guess_ns);

/* The handle is gone, and may come back as something else. */
void costs_forget(struct costs *costs, uint64_t key);

#endif
