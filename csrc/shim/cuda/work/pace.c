/* SPDX-License-Identifier: Apache-2.0 */
/* pace.c -- pays for work, and delays launches while the budget is spent; see pace.h. */
#include "shim/cuda/work/pace.h"
#include "shim/cuda/context/context.h"
#include "shim/cuda/work/limited_devices.h"
#include "shim/driver.h"
#include "core/number.h"

#include <errno.h>
#include <pthread.h>

#define MILLISECOND UINT64_C(1000000)

#define LONGEST_SLEEP_NS (4 * MILLISECOND)  /* then work in flight and new limits are checked */
#define OTHERS_SLEEP_NS  (MILLISECOND / 2)  /* work that other threads begin may cover it */
#define END_SLEEP_NS     (MILLISECOND / 5)  /* beside others, which need to learn when work ends */
#define GUESS_SLEEP_NS   (MILLISECOND / 20) /* at first, while work in flight may be known soon */
#define TIMEOUT_NS       (4 * MILLISECOND)  /* beyond the time in which the debt is paid */
#define WAY_IN_FLIGHT_NS (MILLISECOND / 2)  /* most in flight while others may get priority */
#define WAY_SLEEP_NS     (MILLISECOND / 5)  /* at most as often as the clock is read then */
#define WAY_NAP_NS       (MILLISECOND / 20)
#define WAY_MOST_NS      (100 * MILLISECOND) /* for each process with work */
#define ASK_NS           (MILLISECOND / 10)  /* between two queries of the marks */
#define END_TIMEOUT_NS   (1000 * MILLISECOND)

/* --- waiting ---------------------------------------------------------------------------------- */

static uint64_t now_ns(void)
{
    return clock_now_ns(CLOCK_MONOTONIC);
}

/* Not a cancellation point: a cancelled thread still gives its work to the driver, as it would
 * without the shim. */
static void sleep_until(uint64_t until_ns)
{
    struct timespec until = {.tv_sec = (time_t) (until_ns / (1000 * MILLISECOND)),
                             .tv_nsec = (long) (until_ns % (1000 * MILLISECOND))};
    int cancel;

    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
    pthread_setcancelstate(cancel, NULL);
}

/* The caller holds the marks. */
static void poll_device(struct limited_device *device, uint64_t now)
{
    shim_watch_limits();
    if (unlikely(limited_devices_was_suspended()))
        flight_skip_suspension(now);
    limited_devices_read_clock(device, now);
    flight_poll(device, &device->governor, &device->clock, now);
}

static void poll_devices(uint64_t now)
{
    for (unsigned i = 0; i < limited_device_count; i++)
        if (limited_devices_has(&limited_devices[i]))
            poll_device(&limited_devices[i], now);
}

static void try_poll(struct limited_device *device, uint64_t now)
{
    if (mark_try()) {
        poll_device(device, now);
        mark_leave();
    }
}

/* The thread is about to pause: close its pieces, so that they are measured without the pause. */
static void end_pieces(void)
{
    if (!mark_try())
        return;
    FLIGHT_EACH(lane)
    if (lane->thread == &stream_thread)
        flight_close(lane, 0);
    mark_leave();
}

/* Low priority: how much each process may have in flight while no others have work. */
static int64_t way_in_flight(const struct limited_device *device)
{
    return (int64_t) WAY_IN_FLIGHT_NS / clock_sharers(&device->clock);
}

/* Low priority: 0, or how long to sleep because *ns* more would delay others. Others without work
 * may get some at any moment, and then have to wait for our work in flight. */
static uint64_t way_sleep(const struct limited_device *device, int64_t ns)
{
    uint32_t above = __atomic_load_n(&device->above, __ATOMIC_RELAXED);
    int64_t in_flight;

    if (above != CLOCK_ABOVE_IDLE)
        return above ? WAY_SLEEP_NS : 0;
    in_flight = governor_in_flight(&device->governor);
    if (in_flight == 0 || in_flight + ns <= way_in_flight(device))
        return 0;
    return (uint64_t) within(in_flight / 8, WAY_NAP_NS, WAY_SLEEP_NS);
}

/* State of a launch that waits. */
struct pace_wait {
    uint64_t now;
    uint64_t sleep_ns;
    uint64_t patient_until; /* 0: it has not waited for the budget yet */
    uint64_t way_until;     /* likewise for others' work */
};

static void pause_until(struct limited_device *device, struct pace_wait *wait, uint64_t until_ns)
{
    uint64_t before = wait->now;

    sleep_until(until_ns);
    wait->now = now_ns();
    governor_waited(&device->governor, wait->now - before);
    shim_watch_limits();
}

static void begin_wait(struct limited_device *device, struct flight_lane *lane)
{
    governor_waits(&device->governor);
    if (lane)
        lane->visited_ns = 0;
    end_pieces();
}

/* Give way to others' work. 1: it has slept, and has to check again. The total is bounded, since
 * others may never run out of work. */
static int give_way(struct limited_device *device, struct flight_lane *lane, struct pace_wait *wait,
                    int64_t ns)
{
    uint64_t before = wait->now;
    uint64_t sleep = way_sleep(device, ns);

    if (!sleep)
        return 0;
    if (!wait->way_until) {
        begin_wait(device, lane);
        wait->way_until = before + WAY_MOST_NS * clock_sharers(&device->clock);
    }
    if (before >= wait->way_until)
        return 0;
    pause_until(device, wait, before + sleep);
    if (wait->patient_until)
        wait->patient_until += wait->now - before;
    return 1;
}

static void sleep_for_budget(struct limited_device *device, struct pace_wait *wait,
                             uint64_t until_ns)
{
    until_ns = until_ns < wait->patient_until ? until_ns : wait->patient_until;
    if (!__atomic_load_n(&device->governor.guessing, __ATOMIC_RELAXED) ||
        wait->sleep_ns > LONGEST_SLEEP_NS)
        wait->sleep_ns = LONGEST_SLEEP_NS;
    if (wait->sleep_ns > OTHERS_SLEEP_NS && flight_has_others())
        wait->sleep_ns = OTHERS_SLEEP_NS;
    if (wait->sleep_ns > END_SLEEP_NS && clock_sharers(&device->clock) > 1 &&
        flight_has_begun(device))
        wait->sleep_ns = END_SLEEP_NS;
    if (until_ns > wait->now + wait->sleep_ns)
        until_ns = wait->now + wait->sleep_ns;
    wait->sleep_ns *= 2;
    pause_until(device, wait, until_ns);
}

/* Wait until *ns* of work may begin, and return where it ends on the governor's axis. Wait no
 * longer than the debt found at first takes to be paid, since work that makes it grow meanwhile may
 * wait for this very launch: then *least_ns* of it begins. */
static uint64_t buy(struct limited_device *device, struct flight_lane *lane, int64_t *ns,
                    int64_t least_ns)
{
    struct governor *governor = &device->governor;
    struct pace_wait wait = {.now = now_ns(), .sleep_ns = GUESS_SLEEP_NS};

    for (;;) {
        uint64_t until_ns = wait.now;
        uint64_t end_ns;

        try_poll(device, wait.now);
        if (lane && flight_is_held(lane)) /* its work costs nothing until it begins */
            return governor_place(governor, lane->end_ns, *ns);
        if (give_way(device, lane, &wait, *ns))
            continue;
        end_ns = governor_place(governor, lane ? lane->end_ns : 0, *ns);
        if (!limited_devices_has(device) ||
            governor_buy(governor, &device->share, end_ns, *ns, wait.now, &until_ns) ||
            governor_join(governor, lane, end_ns, *ns))
            return end_ns;
        if (!wait.patient_until) {
            begin_wait(device, lane);
            wait.patient_until =
                wait.now +
                governor_debt_time(governor, &device->share, flight_lanes_begun(device)) +
                TIMEOUT_NS;
        }
        if (wait.now >= wait.patient_until) {
            *ns = least_ns;
            end_ns = governor_place(governor, lane ? lane->end_ns : 0, least_ns);
            governor_pay(governor, end_ns, least_ns);
            return end_ns;
        }
        sleep_for_budget(device, &wait, until_ns);
    }
}

/* --- work ------------------------------------------------------------------------------------- */

/* The device of the current context, NULL if it is not limited. */
static struct limited_device *device_of_work(void)
{
    struct limited_device *device = __atomic_load_n(&throttling.only, __ATOMIC_ACQUIRE);
    CUdevice ordinal;
    int index;

    if (device || limited_device_count == 1)
        return device;
    if (driver.cuCtxGetDevice(&ordinal) != CUDA_SUCCESS)
        return NULL;
    index = shim_device(ordinal);
    return index >= 0 && limited_devices_has(&limited_devices[index]) ? &limited_devices[index]
                                                                      : NULL;
}

static struct flight_lane *lane_of(struct limited_device *device, const struct stream *stream)
{
    struct flight_lane *lane = flight_lane(device, stream_name(stream));

    if (!lane && mark_try()) {
        lane = flight_take_lane(device, stream);
        mark_leave();
    }
    return lane;
}

/* Randomize: pieces that always end where a time slice ends would always be measured wrongly. */
static int64_t any_part_of(int64_t ns)
{
    static __thread uint32_t seed __attribute__((tls_model("initial-exec"))) = 1;

    seed = seed * 1664525u + 1013904223u;
    return ns - (int64_t) (seed >> 16) * ns / (2 << 16);
}

/* How much to buy at once beyond a launch, so that not every launch has to buy. */
static int64_t chunk_of(const struct limited_device *device, const struct flight_lane *lane)
{
    int64_t chunk = any_part_of(governor_chunk(&device->governor, &device->share));

    if (__atomic_load_n(&device->above, __ATOMIC_RELAXED))
        chunk = smaller(chunk, way_in_flight(device) / 2);
    return smaller(lane->chunk_ns, chunk / flight_lanes_begun(device));
}

static void top_up(struct limited_device *device, struct flight_lane *lane, int64_t cost_ns)
{
    int64_t chunk = lane->surprise || lane->left_ns >= cost_ns
                        ? cost_ns
                        : larger(cost_ns, chunk_of(device, lane));

    lane->end_ns = buy(device, lane, &chunk, cost_ns);
    lane->bought_ns += chunk;
    lane->left_ns += chunk;
}

/* Work like this took longer than expected, or may: time bought in advance does not cover it. */
static int is_owed(const struct limited_device *device, const struct flight_lane *lane,
                   const struct cost *cost)
{
    return (lane->surprise || cost->state == COST_GUESSED) &&
           budget_left(device->governor.shared) <= 0;
}

static void pay(struct pace_work *work, const struct costs_key *key, int64_t guess_ns,
                const struct stream *stream)
{
    struct limited_device *device = work->device;
    struct cost *cost = costs_make(&launch_costs, key, guess_ns);
    struct flight_lane *lane = lane_of(device, stream);

    work->lane = lane;
    work->paid_ns = lane && flight_waits(lane) ? cost->ns : costs_expect(cost);
    if (!lane)
        buy(device, NULL, &work->paid_ns, work->paid_ns);
    else if (lane->left_ns < work->paid_ns || is_owed(device, lane, cost))
        top_up(device, lane, work->paid_ns);
}

CUresult pace_pay(struct pace_work *work, const struct costs_key *key, int64_t guess_ns,
                  const struct stream *stream)
{
    int error = errno;

    work->device = NULL;
    work->lane = NULL;
    work->is_sample = 0;
    if (throttling.state == THROTTLING_CLOSED)
        return CUDA_ERROR_NOT_INITIALIZED;
    shim_watch_limits();
    work->device = device_of_work();
    if (work->device && capture_is_going_on() && capture_records(stream))
        work->device = NULL;
    if (work->device)
        pay(work, key, guess_ns, stream);
    errno = error;
    return CUDA_SUCCESS;
}

void pace_give(struct pace_work *work, const struct costs_key *key, int64_t guess_ns)
{
    struct limited_device *device = work->device;
    struct flight_lane *lane = work->lane;
    int error = errno;

    if (!device)
        return;
    if (!lane) {
        governor_trust(&device->governor, work->paid_ns);
        flight_note_unseen(device);
    } else {
        if (mark_try()) {
            work->is_sample = flight_begin(lane, key, costs_make(&launch_costs, key, guess_ns));
            mark_leave();
        }
        lane->left_ns -= work->paid_ns;
    }
    if (!lane || idle_rests(&device->governor.idle))
        idle_work(&device->governor.idle, now_ns());
    errno = error;
}

CUresult pace_begin_slowly(struct pace_work *work, const struct costs_key *key, int64_t guess_ns,
                           const struct stream *stream)
{
    CUresult result = pace_pay(work, key, guess_ns, stream);

    if (result == CUDA_SUCCESS)
        pace_give(work, key, guess_ns);
    return result;
}

void pace_end_slowly(struct pace_work *work, CUresult result)
{
    int error = errno;

    if (work->is_sample) {
        int marked = mark_try();

        flight_end_sample(work->lane, marked && result == CUDA_SUCCESS);
        if (marked)
            mark_leave();
    }
    if (work->lane && result != CUDA_SUCCESS)
        work->lane->left_ns += work->paid_ns; /* the driver refused it, so nothing is in flight */
    errno = error;
}

/* --- waiting, of streams and of threads ------------------------------------------------------- */

static int is_paced(void)
{
    return unlikely(throttling.state == THROTTLING_ON);
}

/* Whether the lane is in *stream*, of any thread; or with NULL, the calling thread's. */
static int is_in(const struct flight_lane *lane, const struct stream *stream)
{
    return stream ? lane->name == stream_name(stream) : lane->thread == &stream_thread;
}

void pace_hold(struct stream stream)
{
    if (!is_paced() || !mark_try())
        return;
    FLIGHT_EACH(lane)
    if (is_in(lane, &stream))
        flight_close(lane, FLIGHT_CLOSE_NS);
    mark_leave();
}

void pace_held(struct stream stream)
{
    struct limited_device *device;

    if (!is_paced())
        return;
    device = device_of_work();
    if (device && !capture_is_going_on())
        lane_of(device, &stream); /* this thread's first launch there waits, too */
    FLIGHT_EACH(lane)
    if (is_in(lane, &stream))
        __atomic_store_n(&lane->need, FLIGHT_WAITS, __ATOMIC_RELAXED);
}

/* The target of a wait: a stream, or with NULL a context, of which a device may have several. */
struct wait {
    const struct stream *stream;
    const struct limited_device *device; /* NULL: the name of the stream is enough */
    CUcontext context;                   /* NULL: the device has no other */
};

static struct wait wait_of(const struct stream *stream)
{
    struct wait wait = {.stream = stream};

    if (stream && stream_is_object(stream->handle))
        return wait;
    wait.device = device_of_work();
    if (wait.device && context_count((unsigned) (wait.device - limited_devices)) > 1)
        driver.cuCtxGetCurrent(&wait.context);
    return wait;
}

/* Whether nothing is left in the lane when the wait is over; for default streams that is known only
 * where there is one of each. The caller holds the marks. */
static int ends_with(const struct flight_lane *lane, const struct wait *wait)
{
    if (wait->stream && lane->name != stream_name(wait->stream))
        return 0;
    if (wait->stream && stream_is_object(wait->stream->handle))
        return 1;
    if (lane->device != wait->device)
        return 0;
    return !wait->context || lane->context == wait->context;
}

void pace_wait(const struct stream *stream)
{
    struct wait wait;
    uint64_t now;

    if (!is_paced() || !mark_try())
        return;
    now = now_ns();
    wait = wait_of(stream);
    FLIGHT_EACH(lane)
    if (ends_with(lane, &wait) || (lane->thread == &stream_thread && is_in(lane, stream))) {
        flight_note_wait(lane, stream != NULL, now);
        lane->visited_ns = 0;
        flight_close(lane, flight_unmarked(lane));
    }
    mark_leave();
}

void pace_waited(const struct stream *stream, int done)
{
    struct wait wait;
    uint64_t now;

    if (!is_paced() || !mark_try())
        return;
    now = now_ns();
    wait = wait_of(stream);
    FLIGHT_EACH(lane)
    lane->is_done = done && ends_with(lane, &wait) && flight_has_ended(lane);
    poll_devices(now);
    FLIGHT_EACH(lane)
    if (lane->is_done) {
        flight_note_idle(lane, &lane->device->clock, &lane->device->governor, now);
        lane->is_done = 0;
        flight_note_rest(lane->device, now);
    }
    mark_leave();
}

void pace_asked(const struct stream *stream, CUresult answer)
{
    static uint64_t asked_ns;
    uint64_t now;

    suspension_note();
    if (!is_paced())
        return;
    now = now_ns();
    if (answer != CUDA_SUCCESS && now - __atomic_load_n(&asked_ns, __ATOMIC_RELAXED) < ASK_NS)
        return;
    __atomic_store_n(&asked_ns, now, __ATOMIC_RELAXED);
    if (answer == CUDA_ERROR_NOT_READY)
        pace_wait(stream);
    pace_waited(stream, stream && answer == CUDA_SUCCESS);
}

/* --- ends ------------------------------------------------------------------------------------- */

void pace_end_stream(CUstream stream)
{
    if (throttling.state == THROTTLING_CLOSED)
        return;
    if (mark_stop_or_visit((uintptr_t) stream)) {
        flight_end_stream(stream);
        mark_leave();
    } else {
        flight_leave_stream(stream);
        mark_end_visit();
    }
}

static int is_anything_ahead(CUcontext context)
{
    FLIGHT_EACH(lane)
    if (lane->count && (!context || !lane->context || lane->context == context))
        return 1;
    return 0;
}

/* Measure what is left: unmeasured work is not charged, and the end of a context waits for its work
 * anyway. */
static void see_the_rest(CUcontext context)
{
    uint64_t now = now_ns();
    uint64_t until_ns = now + END_TIMEOUT_NS;

    for (int ahead = 1; ahead && now < until_ns; now = now_ns()) {
        mark_stop();
        FLIGHT_EACH(lane)
        if (lane->thread == &stream_thread)
            flight_close(lane, 0);
        poll_devices(now);
        ahead = is_anything_ahead(context);
        mark_leave();
        if (ahead)
            sleep_until(now + MILLISECOND / 2);
    }
}

static void forget(CUcontext context)
{
    mark_stop();
    flight_forget(context);
    mark_forget(context);
    mark_leave();
}

void pace_end_context(CUcontext context)
{
    if (throttling.state == THROTTLING_ON)
        see_the_rest(context);
    capture_end_context(context);
    forget(context);
}

void pace_ended_context(CUcontext context)
{
    if (throttling.state == THROTTLING_ON)
        forget(context);
}
