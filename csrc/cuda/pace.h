/* SPDX-License-Identifier: Apache-2.0 */
/* pace.h -- what each call goes through that gives work to a device: it is paid, and perhaps waits
 * for that.
 *
 *     pace_begin()    pay what work of this shape is expected to take
 *     the driver
 *     pace_end()      the driver refused, and what was paid is given back; or a sample ends
 *
 * Work that need not wait looks up its shape and takes what it costs from what its lane has bought:
 * no lock, no system call, and no word that other threads write. All else is done when a lane has
 * used up what it bought, about once in a millisecond: it looks at what is done, and buys again as
 * the governor allows (governor.h).
 *
 * What makes a stream wait goes through pace_hold(), what waits for the device through pace_wait()
 * and pace_waited(), so that waiting is not taken for work.
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
    struct governor_share share;
    struct clock_view clock;
    uint64_t clock_read_ns; /* when it was tried last */
    uint64_t unsure_ns;     /* when it last had work that is known by a guess alone; 0: never */
    uint64_t unseen_ns; /* when it last had work of which nobody knows when it is done; 0: never */
    int beside;         /* it is not limited, but others are on it */
    int lanes_begun;    /* that have something in flight, */
    uint64_t ended_ns;  /* and when work of any was last seen to end */
    uint32_t above;     /* as in clock_above(), if this container gives way to others; else 0 */
    struct governor governor;
};

struct pace {
    enum pace_state state;
    struct pace_device *only; /* the device, if the quota has one alone and it is limited */
    int gives_way;            /* this container is of low priority */
};

extern struct pace pace;
extern struct costs pace_costs;

/* Work on its way to the driver. */
struct pace_work {
    struct pace_device *device; /* NULL: nothing was paid */
    struct flight_lane *lane;   /* NULL: it was paid by itself */
    int64_t paid_ns;
    int is_sample;
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

/* What remains of pace_begin(). */
CUresult pace_begin_slowly(struct pace_work *work, const struct costs_key *key, int64_t guess_ns,
                           const struct stream *stream);

/* Both of its steps, for a call that gives work to several devices: first all is paid, which may
 * wait, then all is about to be given to the driver. */
CUresult pace_pay(struct pace_work *work, const struct costs_key *key, int64_t guess_ns,
                  const struct stream *stream);
void pace_give(struct pace_work *work, const struct costs_key *key, int64_t guess_ns);

/* Pay work of the shape *key* on *stream*; *guess_ns*, if nothing like it was ever measured. An
 * error is what to answer. */
static inline CUresult pace_begin(struct pace_work *work, struct costs_key key, int64_t guess_ns,
                                  struct stream stream)
{
    struct pace_device *device = pace.only;
    const struct cost *cost = costs_find(&pace_costs, &key);
    struct flight_lane *lane;

    work->is_sample = 0;
    if (unlikely(!device) || unlikely(!cost) || unlikely(cost->state < COST_SURE) ||
        captures_going_on())
        return pace_begin_slowly(work, &key, guess_ns, &stream);
    lane = flight_lane(device, flight_name(&stream));
    work->paid_ns = cost->ns;
    if (unlikely(!lane) || unlikely(lane->left_ns < work->paid_ns) || unlikely(lane->need))
        return pace_begin_slowly(work, &key, guess_ns, &stream);
    lane->left_ns -= work->paid_ns;
    work->device = device;
    work->lane = lane;
    return CUDA_SUCCESS;
}

void pace_end_slowly(struct pace_work *work, CUresult result);

static inline CUresult pace_end(struct pace_work *work, CUresult result)
{
    if (unlikely(result != CUDA_SUCCESS) || unlikely(work->is_sample))
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

/* *stream* is about to be given something that it waits for: what is in it ends here. Afterwards,
 * if that was accepted, what comes behind it is not begun until the wait is over. */
void pace_hold(struct stream stream);
void pace_held(struct stream stream);

/* The calling thread is about to wait for *stream*, for what it has in all (NULL), and has waited:
 * *done* says whether all of that is done. */
void pace_wait(const struct stream *stream);
void pace_waited(const struct stream *stream, int done);

/* It has asked whether something is done. */
void pace_asked(const struct stream *stream, CUresult answer);

/* A stream, or a context (NULL: any), is about to end, and what is marked in it with it. */
void pace_end_stream(CUstream stream);
void pace_end_context(CUcontext context);

/* It has ended. Threads that launched in it meanwhile have left marks in it again. */
void pace_ended_context(CUcontext context);

/* The limits are these now; cuInit has succeeded, and this process has a slot. */
void pace_take_limits(const struct quota_limits *limits);
void pace_open(void);

void pace_after_fork(void);

#endif
