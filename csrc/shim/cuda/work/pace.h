/* SPDX-License-Identifier: Apache-2.0 */
/* pace.h -- launch throttling: charges each call that gives work to a device, and delays it if the
 * budget is spent.
 *
 *     pace_begin()    charge the time that work of this shape is expected to take
 *     the driver
 *     pace_end()      refund the charge if the driver refused; or end a sample
 *
 * On the fast path, a launch looks up the cost of its shape and takes it from the time that its
 * lane has bought: no lock, no system call, and no word that other threads write. The slow path
 * runs when a lane has used up what it bought, about once in a millisecond: it checks which work is
 * done, and buys more time as the governor allows (governor.h).
 *
 * Calls that make a stream wait go through pace_hold(), calls that wait for the device through
 * pace_wait() and pace_waited(), so that waiting is not taken for work.
 */
#ifndef PYVGPU_SHIM_CUDA_WORK_PACE_H
#define PYVGPU_SHIM_CUDA_WORK_PACE_H

#include "core/costs.h"
#include "shim/cuda/work/capture.h"
#include "shim/cuda/work/flight.h"
#include "shim/cuda/work/limited_devices.h"
#include "shim/shim.h"
#include "shim/suspension.h"

/* Work on its way to the driver. */
struct pace_work {
    struct limited_device *device; /* NULL: nothing was paid */
    struct flight_lane *lane;      /* NULL: it was paid without a lane */
    int64_t paid_ns;
    int is_sample;
};

/* Whether no device needs throttling now: then a call goes straight to the driver. */
static inline int pace_is_free(void)
{
    return likely(throttling.state == THROTTLING_NONE) &&
           likely(region_generation(shim.region.quota) == shim.ledger.generation) &&
           (likely(--limited_devices_calls > 0) || !limited_devices_watch());
}

/* The slow path of pace_begin(). */
CUresult pace_begin_slowly(struct pace_work *work, const struct costs_key *key, int64_t guess_ns,
                           const struct stream *stream);

/* The two steps of pace_begin(), for a call that gives work to several devices: first pay for all
 * of it, which may wait, then announce that all of it is about to be given to the driver. */
CUresult pace_pay(struct pace_work *work, const struct costs_key *key, int64_t guess_ns,
                  const struct stream *stream);
void pace_give(struct pace_work *work, const struct costs_key *key, int64_t guess_ns);

/* Pay for work of the shape *key* on *stream*; *guess_ns* is its cost if nothing like it was ever
 * measured. The hook returns an error to its caller. */
static inline CUresult pace_begin(struct pace_work *work, struct costs_key key, int64_t guess_ns,
                                  struct stream stream)
{
    struct limited_device *device = throttling.only;
    const struct cost *cost = costs_find(&launch_costs, &key);
    struct flight_lane *lane;

    work->is_sample = 0;
    if (unlikely(!device) || unlikely(!cost) || unlikely(cost->state < COST_SURE) ||
        capture_is_going_on())
        return pace_begin_slowly(work, &key, guess_ns, &stream);
    lane = flight_lane(device, stream_name(&stream));
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

/* The body of every hook that gives work: pay, call the driver, then measure or refund. *begin*
 * fills in `work`. */
#define PACED(begin, symbol, ...)                           \
    do {                                                    \
        struct pace_work work;                              \
        CUresult paid;                                      \
                                                            \
        suspension_note();                                  \
        if (pace_is_free())                                 \
            return driver.symbol(__VA_ARGS__);              \
        paid = begin;                                       \
        if (unlikely(paid != CUDA_SUCCESS))                 \
            return paid;                                    \
        return pace_end(&work, driver.symbol(__VA_ARGS__)); \
    } while (0)

/* A call is about to make *stream* wait: close the piece before the wait. Then, if the driver
 * accepted it, work behind the wait counts as not begun until the wait is over. */
void pace_hold(struct stream stream);
void pace_held(struct stream stream);

/* The calling thread is about to wait for *stream*, or for its whole context (NULL); and it has
 * waited: *done* says whether all of that work is done. */
void pace_wait(const struct stream *stream);
void pace_waited(const struct stream *stream, int done);

/* It has queried whether something is done. */
void pace_asked(const struct stream *stream, CUresult answer);

/* A stream, or a context (NULL: any), is about to end, and its marks with it. */
void pace_end_stream(CUstream stream);
void pace_end_context(CUcontext context);

/* The context has ended. Drop the marks of threads that launched in it meanwhile. */
void pace_ended_context(CUcontext context);

#endif
