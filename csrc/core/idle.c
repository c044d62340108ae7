/* SPDX-License-Identifier: Apache-2.0 */
/* idle.c -- writes the words of usage_file.idle; see idle.h. */
#include "core/idle.h"

static uint64_t word_of(uint64_t from_ns, uint64_t until_ns)
{
    uint64_t from = (from_ns + WORK_UNIT_NS - 1) / WORK_UNIT_NS;
    uint64_t until = until_ns / WORK_UNIT_NS;

    if (until <= from)
        return 0;
    if (until - from >= IDLE_LENGTH_MASK)
        from = until - (IDLE_LENGTH_MASK - 1);
    return from << IDLE_LENGTH_BITS | (until - from);
}

static void publish(struct idle *idle, unsigned at, uint64_t word)
{
    if (word)
        __atomic_store_n(&idle->words[at], word, __ATOMIC_SEQ_CST);
}

static unsigned next_word(struct idle *idle)
{
    return __atomic_xor_fetch(&idle->at, 1, __ATOMIC_SEQ_CST);
}

void idle_rest(struct idle *idle, uint64_t since_ns, uint64_t now)
{
    uint64_t before = __atomic_load_n(&idle->since_ns, __ATOMIC_RELAXED);
    unsigned at;

    if (!idle->words)
        return;
    if (!before) {
        __atomic_store_n(&idle->since_ns, since_ns, __ATOMIC_SEQ_CST);
        return;
    }
    if (__atomic_exchange_n(&idle->published, 1, __ATOMIC_SEQ_CST))
        return;
    at = next_word(idle);
    publish(idle, at, word_of(before, before + 2 * WORK_UNIT_NS) | IDLE_LENGTH_MASK);
    if (!__atomic_load_n(&idle->since_ns, __ATOMIC_SEQ_CST)) /* another thread was faster */
        publish(idle, at, word_of(before, now));
}

void idle_work(struct idle *idle, uint64_t now)
{
    uint64_t from = __atomic_exchange_n(&idle->since_ns, 0, __ATOMIC_SEQ_CST);
    unsigned at;

    if (!from)
        return;
    if (__atomic_exchange_n(&idle->published, 0, __ATOMIC_SEQ_CST))
        at = __atomic_load_n(&idle->at, __ATOMIC_SEQ_CST);
    else
        at = next_word(idle);
    publish(idle, at, word_of(from, now));
}
