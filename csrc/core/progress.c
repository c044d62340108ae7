/* SPDX-License-Identifier: Apache-2.0 */
/* progress.c -- writes and decodes progress points; see progress.h. */
#include "core/progress.h"

#define GAP_NS UINT64_C(100000) /* shorter times without work are not published */

static void put(struct progress *progress, uint64_t at_ns, int begins)
{
    uint64_t word =
        at_ns / WORK_UNIT_NS << PROGRESS_TIME_SHIFT | (uint32_t) (progress->done_ns / WORK_UNIT_NS);

    word |= begins ? PROGRESS_BEGINS : 0;
    word |= progress->sure ? PROGRESS_SURE : 0;
    __atomic_store_n(&progress->words[progress->at], word, __ATOMIC_RELAXED);
}

static void next(struct progress *progress)
{
    progress->at = (progress->at + 1) % PROGRESS_WORDS;
}

static void begin(struct progress *progress, uint64_t from_ns)
{
    progress->begin_ns = from_ns;
    progress->sure = 1;
    next(progress);
    put(progress, from_ns, 1);
    next(progress);
}

void progress_add(struct progress *progress, uint64_t from_ns, uint64_t until_ns, int64_t taken_ns,
                  int sure)
{
    if (!progress->words)
        return;
    if (from_ns > progress->end_ns + GAP_NS || !progress->end_ns) {
        begin(progress, from_ns);
    } else if (progress->end_ns - progress->begin_ns >= PROGRESS_STEP_NS ||
               sure != progress->sure) {
        progress->begin_ns = progress->end_ns;
        next(progress);
    }
    progress->sure = sure;
    progress->done_ns += taken_ns > 0 ? (uint64_t) taken_ns : 0;
    if (until_ns > progress->end_ns)
        progress->end_ns = until_ns;
    put(progress, progress->end_ns, 0);
}

struct progress_point progress_point(uint64_t word, uint64_t now)
{
    return (struct progress_point) {region_moment(word, PROGRESS_TIME_SHIFT, now), (uint32_t) word,
                                    (word & PROGRESS_BEGINS) != 0, (word & PROGRESS_SURE) != 0};
}
