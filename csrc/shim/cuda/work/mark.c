/* SPDX-License-Identifier: Apache-2.0 */
/* mark.c -- sets and reads events in the program's streams; see mark.h. */
#include "shim/cuda/work/mark.h"
#include "shim/cuda/work/capture.h"
#include "shim/cuda/context/context.h"
#include "core/lock.h"
#include "core/spin.h"

#include <string.h>

enum { HOMES = 16, SPARE = 64 };

/* The driver reports milliseconds in a float, which has 24 bits: exact to 0.1 us up to here. */
#define BASE_LASTS_NS INT64_C(1000000000)

struct mark_home {
    CUcontext handle; /* NULL: free */
    uint32_t life;    /* counted up when its marks are lost */
    unsigned spare_count;
    CUevent spare[SPARE];
    CUevent base;      /* event that times are counted from; NULL: none yet */
    int base_is_spare; /* it is no longer the event of a mark */
    uint64_t base_ns;
};

/* Which thread may touch the marks and the records of work in flight. While it sets a mark, it
 * changes none of these; and where the stream's queue is full, it may be in the driver for long. */
enum {
    FREE,
    HELD,    /* by the thread that took them */
    SETTING, /* likewise, and it is in the driver */
    VISITED, /* likewise, and another thread makes use of that */
};

enum { VISIT_TRIES = SPIN_TRIES + 100 }; /* each some 20 us: then a thread comes as a visitor */

static struct mark_home homes[HOMES];
static int state;
static uintptr_t marked; /* the name of the stream in which a mark is set */
static CUstreamCaptureMode mode_before;
static int mode_exchanged;

/* A query would break captures of other threads, unless this thread is in relaxed capture mode. No
 * capture can begin under the lock, since a thread that begins one stops the marks first. */
static void relax(void)
{
    mode_before = CU_STREAM_CAPTURE_MODE_RELAXED;
    mode_exchanged = capture_is_going_on() &&
                     driver.cuThreadExchangeStreamCaptureMode(&mode_before) == CUDA_SUCCESS;
}

static int change(int from, int to)
{
    return __atomic_load_n(&state, __ATOMIC_RELAXED) == from &&
           __atomic_compare_exchange_n(&state, &from, to, 0, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED);
}

static void pause_after(unsigned tries)
{
    if (tries < SPIN_TRIES)
        cpu_relax();
    else
        spin_nap();
}

static void begin_hold(void)
{
    lock_note_taken(LOCK_MARKS, &state);
    relax();
}

int mark_try(void)
{
    if (!change(FREE, HELD))
        return 0;
    begin_hold();
    return 1;
}

void mark_stop(void)
{
    lock_check(LOCK_MARKS, &state);
    for (unsigned tries = 0; !change(FREE, HELD); tries++)
        pause_after(tries);
    begin_hold();
}

void mark_leave(void)
{
    if (mode_exchanged)
        driver.cuThreadExchangeStreamCaptureMode(&mode_before);
    lock_note_released(LOCK_MARKS);
    __atomic_store_n(&state, FREE, __ATOMIC_RELEASE);
}

/* Marks in the legacy stream concern other streams, too. */
static int visit(uintptr_t stream)
{
    if (!change(SETTING, VISITED))
        return 0;
    if (marked != stream && marked != (uintptr_t) CU_STREAM_LEGACY)
        return 1;
    mark_end_visit();
    return 0;
}

int mark_stop_or_visit(uintptr_t stream)
{
    lock_check(LOCK_MARKS, &state);
    for (unsigned tries = 0; !change(FREE, HELD); tries++) {
        if (tries > VISIT_TRIES && visit(stream))
            return 0;
        pause_after(tries);
    }
    begin_hold();
    return 1;
}

void mark_end_visit(void)
{
    __atomic_store_n(&state, SETTING, __ATOMIC_SEQ_CST);
}

/* Record the event; a capture may have begun meanwhile. */
static CUresult record(CUevent event, const struct stream *stream)
{
    CUresult result;

    marked = stream_name(stream);
    __atomic_store_n(&state, SETTING, __ATOMIC_SEQ_CST);
    result = STREAM_CALL(stream, cuEventRecord)(event, stream->handle);
    for (unsigned tries = 0; unlikely(!change(SETTING, HELD)); tries++)
        pause_after(tries);
    if (!mode_exchanged)
        relax();
    return result;
}

static struct mark_home *home_of(CUcontext handle)
{
    struct mark_home *unused = NULL;

    for (unsigned i = 0; i < HOMES; i++) {
        if (homes[i].handle == handle)
            return &homes[i];
        if (!homes[i].handle && !unused)
            unused = &homes[i];
    }
    if (unused)
        unused->handle = handle;
    return unused;
}

static int is_alive(const struct mark *mark)
{
    return mark->event && mark->home->life == mark->life;
}

/* Make the context of *stream* current; *pushed* says whether it had to be pushed. */
static int enter(const struct stream *stream, CUcontext *handle, int *pushed)
{
    CUcontext current;

    *pushed = 0;
    if (driver.cuCtxGetCurrent(&current) != CUDA_SUCCESS)
        return -1;
    *handle = current;
    if (stream_is_object(stream->handle) &&
        driver.cuStreamGetCtx(stream->handle, handle) != CUDA_SUCCESS)
        return -1;
    if (!*handle)
        return -1;
    *pushed = *handle != current;
    return *pushed && driver.cuCtxPushCurrent_v2(context_to_push(*handle)) != CUDA_SUCCESS ? -1 : 0;
}

static void leave(int pushed)
{
    CUcontext popped;

    if (pushed)
        driver.cuCtxPopCurrent_v2(&popped);
}

/* Get an event for the mark; its context is current. */
static int take_in(struct mark *mark, CUcontext handle)
{
    struct mark_home *home = home_of(handle);

    if (!home)
        return -1;
    *mark = (struct mark) {.home = home, .life = home->life};
    if (home->spare_count)
        mark->event = home->spare[--home->spare_count];
    else if (driver.cuEventCreate(&mark->event, CU_EVENT_DEFAULT) != CUDA_SUCCESS)
        mark->event = NULL;
    return mark->event ? 0 : -1;
}

void mark_give_back(struct mark *mark)
{
    struct mark_home *home = mark->home;

    if (is_alive(mark) && mark->event == home->base) {
        home->base_is_spare = 1;
    } else if (is_alive(mark)) {
        if (home->spare_count < SPARE)
            home->spare[home->spare_count++] = mark->event;
        else
            driver.cuEventDestroy_v2(mark->event);
    }
    *mark = (struct mark) {NULL};
}

/* An event must be recorded in the context of its stream. */
int mark_set(struct mark *mark, const struct stream *stream)
{
    CUcontext handle;
    int pushed;
    int result;

    *mark = (struct mark) {NULL};
    if (enter(stream, &handle, &pushed) != 0)
        return -1;
    result = take_in(mark, handle);
    if (result == 0) {
        mark->set_ns = clock_now_ns(CLOCK_MONOTONIC);
        if (record(mark->event, stream) != CUDA_SUCCESS) {
            mark_give_back(mark);
            result = -1;
        }
    }
    leave(pushed);
    return result;
}

enum mark_state mark_poll(struct mark *mark, uint64_t now)
{
    CUresult result;

    if (!is_alive(mark))
        return MARK_LOST;
    result = driver.cuEventQuery(mark->event);
    if (result == CUDA_SUCCESS)
        return MARK_PASSED;
    if (result != CUDA_ERROR_NOT_READY)
        return MARK_LOST;
    mark->set_ns = now;
    return MARK_AHEAD;
}

static int64_t elapsed(CUevent begin, CUevent end)
{
    float milliseconds;

    if (driver.cuEventElapsedTime(&milliseconds, begin, end) != CUDA_SUCCESS ||
        !(milliseconds >= 0.0F) || milliseconds > 1e12F)
        return -1;
    return (int64_t) ((double) milliseconds * 1e6);
}

/* Count times from *event*, which was passed at *when*, about. Later marks narrow that down. */
static void begin_base(struct mark_home *home, CUevent event, uint64_t when)
{
    if (home->base && home->base_is_spare && home->spare_count < SPARE)
        home->spare[home->spare_count++] = home->base;
    home->base = event;
    home->base_is_spare = 0;
    home->base_ns = when;
}

uint64_t mark_when(const struct mark *mark, uint64_t likely_ns, uint64_t now)
{
    struct mark_home *home = mark->home;
    int64_t since;
    uint64_t when;

    if (!is_alive(mark))
        return 0;
    if (!home->base)
        begin_base(home, mark->event, likely_ns < now ? likely_ns : now);
    since = elapsed(home->base, mark->event);
    if (since < 0) {
        since = -elapsed(mark->event, home->base);
        if (since > 0)
            return 0;
    }
    when = home->base_ns + (uint64_t) since;
    if (when > now) /* the device may have passed it since *now* was read */
        now = clock_now_ns(CLOCK_MONOTONIC);
    if (when < mark->set_ns) {
        home->base_ns += mark->set_ns - when;
        when = mark->set_ns;
    }
    if (when > now) {
        home->base_ns -= when - now;
        when = now;
    }
    if (since > BASE_LASTS_NS)
        begin_base(home, mark->event, when);
    return when;
}

void mark_forget(CUcontext handle)
{
    for (unsigned i = 0; i < HOMES; i++)
        if (homes[i].handle && (!handle || homes[i].handle == handle)) {
            homes[i].life++;
            homes[i].handle = NULL;
            homes[i].spare_count = 0;
            homes[i].base = NULL;
        }
}

void mark_after_fork(void)
{
    memset(homes, 0, sizeof(homes));
    state = FREE;
}
