/* SPDX-License-Identifier: Apache-2.0 */
/* pace.c -- pays for work, and waits until it may begin; see pace.h. */
#include "cuda/pace.h"
#include "cuda/held.h"
#include "driver.h"
#include "number.h"

#include <errno.h>
#include <pthread.h>

#define MILLISECOND UINT64_C(1000000)

#define LONGEST_SLEEP_NS (50 * MILLISECOND) /* then a new limit is seen */
#define FULL_LOOK_NS     (MILLISECOND / 2)

/* Work can be in flight that waits for this very thread, such as behind a gate that it is about to
 * open: a launch waits for what is in flight no longer than this. */
#define FULL_PATIENCE_NS    (100 * MILLISECOND)
#define FULL_PATIENCE_TIMES 4                    /* and that many times what is in flight */
#define NEW_PATIENCE_NS     (1000 * MILLISECOND) /* for a kernel that was never measured */

#define END_PATIENCE_NS (1000 * MILLISECOND)
#define CLOCKED_MOST_NS (1000 * MILLISECOND)

struct costs pace_costs;

void pace_after_fork(void)
{
    held_forget();
    flight_after_fork();
    marks_after_fork();
}

/* --- waiting ---------------------------------------------------------------------------------- */

static uint64_t now_ns(void)
{
    return clock_now_ns(CLOCK_MONOTONIC);
}

/* A cancelled thread goes on until the driver has its work: as without us. */
static void sleep_until(uint64_t until_ns)
{
    struct timespec until = {.tv_sec = (time_t) (until_ns / (1000 * MILLISECOND)),
                             .tv_nsec = (long) (until_ns % (1000 * MILLISECOND))};
    int cancel;

    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
    pthread_setcancelstate(cancel, NULL);
}

static void read_clocks(uint64_t now)
{
    for (unsigned i = 0; i < held_count; i++)
        if (held_is(&held_devices[i]))
            held_read_clock(&held_devices[i], now);
}

/* Look at everything that this process has in flight, by clocks of now; the caller has the marks.
 * Whatever was measured is of a period that is seen then, or of one that is not over. */
static int look_at_all(uint64_t now)
{
    int progress = 0;

    read_clocks(now);
    for (unsigned i = 0; i < held_count; i++) {
        struct pace_device *device = &held_devices[i];

        if (!held_is(device))
            continue;
        progress |=
            flight_look(&device->flight, &device->governor, &pace_costs, &device->clock, now);
        if (device->share.hush_ns > now)
            governor_empty(&device->governor, now);
    }
    return flight_learn(&pace_costs, now) | progress;
}

/* A thread's wait for a launch that it is about to make. */
struct wait {
    uint64_t until_ns; /* patience ends then; 0: it has not begun */
    int counted;
};

/* The wait is bounded by wall time from its first look. Progress of other work does not extend it,
 * since that says nothing of the work that this launch waits for. */
static int be_patient(struct wait *wait, const struct governor *governor, uint64_t patience_ns,
                      uint64_t now)
{
    if (!wait->until_ns) {
        int64_t flight = (int64_t) (governor_paid(governor) -
                                    __atomic_load_n(&governor->finished_ns, __ATOMIC_RELAXED));

        wait->until_ns = now + patience_ns + FULL_PATIENCE_TIMES * (uint64_t) larger(flight, 0);
    }
    return now <= wait->until_ns;
}

static void nap(struct wait *wait, struct governor *governor, uint64_t now, uint64_t until_ns)
{
    if (!wait->counted)
        governor_waits(governor);
    wait->counted = 1;
    sleep_until(until_ns < now + LONGEST_SLEEP_NS ? until_ns : now + LONGEST_SLEEP_NS);
    governor_waited(governor, now_ns() - now);
}

/* End the period, and see what is done: whether anything was. */
static int look(struct pace_device *device, const struct stream *stream, uint64_t now)
{
    int progress = 0;

    if (marks_try()) {
        flight_end_period(&device->flight, &device->governor, stream);
        progress = look_at_all(now);
        marks_leave();
    }
    return progress;
}

/* Credit is used up: end the period, see what is done, and buy more as soon as that may be. */
static void buy(struct pace_device *device, const struct stream *stream, int64_t cost_ns)
{
    struct governor *governor = &device->governor;
    struct wait wait = {0};

    while (held_is(device)) {
        uint64_t now = now_ns();
        uint64_t until_ns = now + FULL_LOOK_NS;
        enum governor_answer answer;

        look(device, stream, now);
        answer = governor_buy(governor, &device->share, cost_ns, now, &until_ns);
        if (answer == GOVERNOR_GO)
            return;
        if (answer == GOVERNOR_FULL && !be_patient(&wait, governor, FULL_PATIENCE_NS, now))
            governor_finish(governor, governor_paid(governor), now);
        nap(&wait, governor, now, until_ns);
        shim_watch_limits();
    }
}

/* --- work ------------------------------------------------------------------------------------- */

/* The device that the current context is of, NULL if it is not limited. */
static struct pace_device *device_of_work(void)
{
    struct pace_device *device = __atomic_load_n(&pace.only, __ATOMIC_ACQUIRE);
    CUdevice ordinal;
    int index;

    if (device || held_count == 1)
        return device;
    if (driver.cuCtxGetDevice(&ordinal) != CUDA_SUCCESS)
        return NULL;
    index = shim_device(ordinal);
    return index >= 0 && held_is(&held_devices[index]) ? &held_devices[index] : NULL;
}

/* What it costs. If its like is under way and its duration is unknown, see that finished first,
 * but wait no longer than patience lasts or the device is held. */
static struct costs_quote ask(struct pace_device *device, const struct stream *stream, uint64_t key,
                              int64_t guess_ns)
{
    struct costs_quote quote = costs_ask(&pace_costs, key, guess_ns);
    struct wait wait = {0};
    uint64_t now;

    while (quote.stands_for == COSTS_CROWDED && (now = now_ns(), held_is(device)) &&
           be_patient(&wait, &device->governor, NEW_PATIENCE_NS, now)) {
        if (!look(device, stream, now))
            nap(&wait, &device->governor, now, now + FULL_LOOK_NS / 8);
        shim_watch_limits();
        quote = costs_ask(&pace_costs, key, guess_ns);
    }
    return quote.stands_for == COSTS_CROWDED ? costs_ask_anyway(&pace_costs, key, guess_ns) : quote;
}

static void measure_not(uint64_t key, uint32_t stands_for)
{
    struct costs_sample none = {.elapsed_ns = -1, .stands_for = stands_for};

    if (stands_for)
        costs_learn(&pace_costs, key, &none);
}

static void measure(struct pace_work *work, uint64_t key, const struct costs_quote *quote)
{
    work->key = key;
    work->stands_for = quote->stands_for;
    if (work->sample)
        flight_describe(work->sample, &work->device->governor, &work->device->clock, key,
                        quote->cost_ns, quote->stands_for);
    else
        work->began_ns = now_ns();
}

static void pay(struct pace_device *device, const struct stream *stream, struct costs_quote *quote)
{
    uint64_t settled_ns = device->governor.settled_ns;

    if (governor_pay(&device->governor, quote->cost_ns))
        return;
    buy(device, stream, quote->cost_ns);
    if (device->governor.settled_ns != settled_ns)
        costs_stand_alone(quote);
}

static void begin(struct pace_work *work, uint64_t key, struct costs_quote *quote)
{
    struct pace_device *device = work->device;
    int failing = 0;

    pay(device, &work->stream, quote);
    work->paid_ns = quote->cost_ns;
    if (!marks_try()) {
        measure_not(key, quote->stands_for);
        return;
    }
    if (!flight_knows(&device->flight, &work->stream))
        flight_use(&device->flight, &work->stream);
    if (quote->stands_for)
        work->sample = flight_begin_sample(&work->stream, &failing);
    marks_leave();
    work->clocked = failing && !captures_going_on();
    if (work->sample || work->clocked)
        measure(work, key, quote);
    else
        measure_not(key, quote->stands_for);
}

CUresult pace_begin_slowly(struct pace_work *work, uint64_t key, int64_t guess_ns,
                           const struct costs_quote *quote)
{
    struct costs_quote asked;
    int error = errno;

    work->device = NULL;
    if (pace.state == PACE_CLOSED)
        return CUDA_ERROR_NOT_INITIALIZED;
    shim_watch_limits();
    work->device = device_of_work();
    if (work->device && captures_going_on() && capture_has(&work->stream))
        work->device = NULL;
    if (work->device) {
        asked = quote && quote->stands_for != COSTS_CROWDED
                    ? *quote
                    : ask(work->device, &work->stream, key, guess_ns);
        begin(work, key, &asked);
    } else if (quote && quote->stands_for != COSTS_CROWDED) {
        measure_not(key, quote->stands_for);
    }
    errno = error;
    return CUDA_SUCCESS;
}

/* Events fail, so wait for the stream and look at our own clock. */
static void measure_by_clock(const struct pace_work *work)
{
    const struct stream *stream = &work->stream;
    struct costs_sample sample = {
        .paid_ns = work->paid_ns, .rate = CLOCK_WHOLE, .stands_for = work->stands_for};
    uint64_t now;

    while (now = now_ns(),
           now - work->began_ns < CLOCKED_MOST_NS &&
               STREAM_CALL(stream, cuStreamQuery)(stream->handle) == CUDA_ERROR_NOT_READY)
        sleep_until(now + FULL_LOOK_NS / 8);
    sample.elapsed_ns = (int64_t) (now - work->began_ns);
    governor_correct(&work->device->governor, costs_learn(&pace_costs, work->key, &sample),
                     work->began_ns);
}

/* The driver refused it, so nothing is under way. */
static void take_back(const struct pace_work *work)
{
    credit_give_back(&work->device->governor.credit, work->paid_ns);
    if (work->clocked)
        measure_not(work->key, work->stands_for);
}

void pace_end_slowly(struct pace_work *work, CUresult result)
{
    int error = errno;

    if (work->sample)
        flight_end_sample(work->sample, result == CUDA_SUCCESS, &work->stream, now_ns());
    if (work->device && result != CUDA_SUCCESS)
        take_back(work);
    else if (work->device && work->clocked)
        measure_by_clock(work);
    errno = error;
}

static int is_anything_ahead(void)
{
    for (unsigned i = 0; i < held_count; i++)
        if (held_devices[i].flight.count)
            return 1;
    return flight_samples_ahead() != 0;
}

void pace_look(void)
{
    if (likely(pace.state != PACE_HELD) || !is_anything_ahead() || !marks_try())
        return;
    look_at_all(now_ns());
    marks_leave();
}

/* --- ends ------------------------------------------------------------------------------------- */

void pace_end_stream(CUstream stream)
{
    if (pace.state == PACE_CLOSED)
        return;
    marks_stop();
    for (unsigned i = 0; i < held_count; i++)
        flight_forget_stream(&held_devices[i].flight, stream);
    marks_leave();
}

/* What was not measured is not paid; and the end of a context waits for its work anyway. */
static void see_samples(void)
{
    uint64_t now = now_ns();
    uint64_t until_ns = now + END_PATIENCE_NS;

    for (; flight_samples() && now < until_ns; now = now_ns()) {
        marks_stop();
        look_at_all(now);
        marks_leave();
        if (flight_samples())
            sleep_until(now + FULL_LOOK_NS);
    }
}

void pace_end_context(CUcontext context)
{
    if (pace.state == PACE_HELD)
        see_samples();
    capture_end_context(context);
    marks_stop();
    for (unsigned i = 0; i < held_count; i++)
        flight_forget(&held_devices[i].flight);
    marks_forget(context);
    marks_leave();
}
