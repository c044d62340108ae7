/* SPDX-License-Identifier: Apache-2.0 */
/* pace.h -- what each call goes through that gives work to a device: it is paid, and perhaps waits
 * for that.
 *
 *     pace_begin()    pay what work of this key costs; mark the stream if it is measured
 *     the driver
 *     pace_end()      mark it again; or the driver refused, and what was paid is given back
 *
 * Work that need not wait is a look at the table of costs and one atomic subtraction. All else is
 * done by who buys credit, about once in a millisecond: he marks the streams that were used since,
 * looks at older marks, and tells the governor (governor.h) what they say.
 */
#ifndef PYVGPU_CUDA_PACE_H
#define PYVGPU_CUDA_PACE_H

#include "costs.h"
#include "cuda/capture.h"
#include "cuda/flight.h"
#include "governor.h"
#include "shim.h"

enum pace_state {
    PACE_CLOSED, /* before cuInit, and in a forked child */
    PACE_FREE,   /* no device is limited, or has others on it */
    PACE_HELD,
};

struct pace_device {
    struct governor governor;
    struct governor_share share;
    struct flight flight;
    struct clock_view clock;
    uint64_t clock_read_ns; /* when it was tried last */
    int beside;             /* it is not limited, but others are on it */
};

struct pace {
    enum pace_state state;
    struct pace_device *only; /* the device, if the quota has one alone and it is limited */
};

extern struct pace pace;
extern struct costs pace_costs;

/* Work on its way to the driver. */
struct pace_work {
    struct pace_device *device; /* NULL: nothing was paid */
    int64_t paid_ns;
    struct flight_sample *sample; /* NULL: it is not measured, or *clocked* */
    int clocked;                  /* events fail: measured by our own clock */
    struct stream stream;
    uint64_t key;
    uint64_t began_ns;
    uint32_t stands_for;
};

/* Now and then: whether there are others now on a device that is not limited. */
int pace_watch(void);

extern __thread int32_t pace_calls __attribute__((tls_model("initial-exec")));

/* Whether no device is limited, now: then a call is the driver's and nothing else. */
static inline int pace_is_free(void)
{
    return likely(pace.state == PACE_FREE) &&
           likely(region_generation(shim.region.quota) == shim.ledger.generation) &&
           (likely(--pace_calls > 0) || !pace_watch());
}

/* What remains of pace_begin(); *quote* may be NULL. */
CUresult pace_begin_slowly(struct pace_work *work, uint64_t key, int64_t guess_ns,
                           const struct costs_quote *quote);

/* Pay work of *key* on *stream*; *guess_ns*, if nothing like it was ever measured. An error is what
 * to answer. */
static inline CUresult pace_begin(struct pace_work *work, uint64_t key, int64_t guess_ns,
                                  struct stream stream)
{
    struct pace_device *device = pace.only;
    struct costs_quote quote;

    work->stream = stream;
    work->sample = NULL;
    work->clocked = 0;
    if (unlikely(!device) || captures_going_on())
        return pace_begin_slowly(work, key, guess_ns, NULL);
    quote = costs_ask(&pace_costs, key, guess_ns);
    if (unlikely(quote.stands_for) || unlikely(!flight_knows(&device->flight, &stream)) ||
        unlikely(!governor_pay(&device->governor, quote.cost_ns)))
        return pace_begin_slowly(work, key, guess_ns, &quote);
    work->device = device;
    work->paid_ns = quote.cost_ns;
    return CUDA_SUCCESS;
}

void pace_end_slowly(struct pace_work *work, CUresult result);

static inline CUresult pace_end(struct pace_work *work, CUresult result)
{
    if (unlikely(result != CUDA_SUCCESS) || unlikely(work->sample) || unlikely(work->clocked))
        pace_end_slowly(work, result);
    return result;
}

/* One shape for all hooks of work: pay, ask, measure or take back. *begin* fills in `work`. */
#define PACED(begin, symbol, ...)                           \
    do {                                                    \
        struct pace_work work;                              \
        CUresult paid;                                      \
                                                            \
        if (pace_is_free())                                 \
            return driver.symbol(__VA_ARGS__);              \
        paid = begin;                                       \
        if (unlikely(paid != CUDA_SUCCESS))                 \
            return paid;                                    \
        return pace_end(&work, driver.symbol(__VA_ARGS__)); \
    } while (0)

/* Whoever waits for the device sees what it has done. */
void pace_look(void);

/* A stream, or a context (NULL: any), is about to end, and what is marked in it with it. */
void pace_end_stream(CUstream stream);
void pace_end_context(CUcontext context);

/* The limits are these now; cuInit has succeeded, and this process has a slot. */
void pace_take_limits(const struct quota_limits *limits);
void pace_open(void);

void pace_after_fork(void);

#endif
