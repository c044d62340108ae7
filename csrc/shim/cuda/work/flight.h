/* SPDX-License-Identifier: Apache-2.0 */
/* flight.h -- tracks work in flight: given to a device, and not yet seen finished.
 *
 * A lane is a stream as one thread uses it. Its launches are cut into pieces, each some
 * milliseconds of expected work, by marks (mark.h): the device passes the mark behind a piece when
 * all of it is done. Pieces of a lane end in their order; lanes are independent of each other. A
 * piece behind something that the stream waits for has a mark before it, too, and counts as begun
 * once the device has passed that.
 *
 * To learn what a shape costs, now and then one launch becomes a piece of its own (a sample).
 *
 * flight_lane() is for the thread that launches; all else is for the thread that holds the marks.
 */
#ifndef PYVGPU_SHIM_CUDA_WORK_FLIGHT_H
#define PYVGPU_SHIM_CUDA_WORK_FLIGHT_H

#include "core/clock.h"
#include "core/costs.h"
#include "shim/cuda/work/mark.h"
#include "core/governor.h"

enum {
    FLIGHT_LANES = 256,
    FLIGHT_PIECES = 32, /* unfinished pieces of a lane; further ones are merged */
    FLIGHT_OWN = 8,     /* lanes in a thread's cache */
};

/* What a lane needs before its next launch. */
enum flight_need {
    FLIGHT_NOTHING,
    FLIGHT_OPEN,   /* a new piece */
    FLIGHT_SAMPLE, /* perhaps a piece of its own */
    FLIGHT_WAITS   /* a new piece, which begins when the stream's wait is over */
};

struct flight_piece {
    struct mark begin; /* none: it begins when the device is done with the work before it */
    struct mark end;
    uint64_t opened_ns; /* it did not begin before */
    uint64_t given_ns;  /* the driver had all of it */
    int64_t spent_ns;   /* flight_spent() of the lane when it was opened */
    int64_t expected_ns;
    int waits;         /* it has not begun until the mark before it was passed */
    int guessed;       /* so many of its launches were never measured, */
    int unsure;        /* or not known for sure, */
    int mixed;         /* or very different from launch to launch */
    struct cost *cost; /* of the shape if it is a single launch (a sample); or NULL */
    struct costs_key key;
    int crowded;  /* other streams had work when it began */
    int is_empty; /* measures the time of the marks themselves */
};

struct limited_device;

struct flight_lane {
    /* owned by its thread */
    int64_t left_ns; /* of the time that was bought */
    uint32_t need;   /* enum flight_need; others set it, too */
    uintptr_t name;  /* see stream_name(); 0: free */
    const char *thread;
    struct limited_device *device;
    /* owned by the thread that holds the marks */
    struct stream stream;
    CUcontext context; /* of its stream; NULL: whichever is current */
    int64_t bought_ns;
    int64_t chunk_ns;    /* most that is bought at once */
    uint64_t visited_ns; /* when time was last bought; 0: it has waited since */
    uint64_t end_ns;     /* on the governor's axis: expected end of the time bought */
    struct mark last;    /* behind its last piece that is done, or */
    uint64_t done_ns;    /* when it was seen to be empty */
    uint64_t sampled_ns; /* when a launch was last a sample */
    unsigned idle_samples;
    int surprise; /* its work took much longer than expected, and no launch was measured since */
    uint64_t axis_ns;  /* on that axis: where its first piece began, */
    uint64_t late_ns;  /* and up to where that piece has certainly run by now */
    uint64_t since_ns; /* none of its unfinished work ran before this */
    int by_clock;      /* its marks fail: it counts as busy until its stream is seen to be idle */
    int is_begun;      /* it has unfinished work that does not wait */
    int is_held;       /* all of its work waits for something other than the device */
    unsigned first, count;
    struct flight_piece pieces[FLIGHT_PIECES];
    int is_open;
    struct flight_piece open;
    uint64_t waited_ns;    /* since when a thread has waited for it, perhaps among others, */
    int64_t waited_for_ns; /* and flight_spent() then */
    int is_waited_for;     /* that thread waits for nothing but its stream */
    int is_done;           /* a wait has shown it to be done: about to be noted idle */
    int doubted;           /* waits that still get a mark, since one took longer than expected */
};

extern __thread struct flight_lane *flight_own[FLIGHT_OWN]
    __attribute__((tls_model("initial-exec")));

static inline unsigned flight_place(uintptr_t name)
{
    return (unsigned) (name >> 4 ^ name >> 8) % FLIGHT_OWN;
}

/* The calling thread's lane in a stream of *device*; NULL if it has none, or not in its cache. */
static inline struct flight_lane *flight_lane(const struct limited_device *device, uintptr_t name)
{
    struct flight_lane *lane = flight_own[flight_place(name)];

    return likely(lane) && likely(lane->name == name) && likely(lane->thread == &stream_thread) &&
                   likely(lane->device == device)
               ? lane
               : NULL;
}

/* Whether the next launch may wait for something other than the device. */
static inline int flight_waits(const struct flight_lane *lane)
{
    return lane->need == FLIGHT_WAITS || lane->is_held || lane->open.waits;
}

static inline int64_t flight_spent(const struct flight_lane *lane)
{
    return lane->bought_ns - __atomic_load_n(&lane->left_ns, __ATOMIC_RELAXED);
}

/* Find or create the lane; NULL if all are in use. */
struct flight_lane *flight_take_lane(struct limited_device *device, const struct stream *stream);

/* The thread is about to launch work of the shape *cost* in *lane*: cut pieces where due. 1: the
 * launch is a sample; call flight_end_sample() once the driver has it. If *marked* is 0 then, it
 * stays a launch like any other. */
int flight_begin(struct flight_lane *lane, const struct costs_key *key, struct cost *cost);
void flight_end_sample(struct flight_lane *lane, int marked);

/* End the open piece if there is more than *least_ns* of expected work in it. */
#define FLIGHT_CLOSE_NS INT64_C(250000) /* before a thread waits, which shows what is done */
void flight_close(struct flight_lane *lane, int64_t least_ns);

/* A thread is about to wait for the lane: for it *alone*, or among others. */
void flight_note_wait(struct flight_lane *lane, int alone, uint64_t now);

/* A wait for the lane is over: whether nothing was launched in it since the wait began. */
int flight_has_ended(const struct flight_lane *lane);

/* How much work of the open piece a wait leaves without a mark. */
int64_t flight_unmarked(const struct flight_lane *lane);

/* Whether it has work, and all of it waits for something other than the device. */
int flight_is_held(const struct flight_lane *lane);

/* The device has done all work of this lane. */
void flight_note_idle(struct flight_lane *lane, const struct clock_view *clock,
                      struct governor *governor, uint64_t now);

/* The device was given work that is in no lane, so its end will not be seen. */
void flight_note_unseen(struct limited_device *device);

/* If the device has no work left, report it idle, and send the next launch to flight_begin(). */
void flight_note_rest(struct limited_device *device, uint64_t now);

/* Find out which work is done, and report it to the governor. */
void flight_poll(struct limited_device *device, struct governor *governor,
                 const struct clock_view *clock, uint64_t now);

/* Whether other threads launch, too. */
int flight_has_others(void);

/* Whether the device had work of this process at the last poll. */
int flight_has_begun(const struct limited_device *device);

/* Lanes of the device with something in flight, at least 1. */
int flight_lanes_begun(const struct limited_device *device);

/* For each lane in use. */
#define FLIGHT_EACH(lane)                                                                        \
    for (struct flight_lane *lane = flight_lanes; lane < flight_lanes + flight_lane_end; lane++) \
        if (lane->name)

extern struct flight_lane flight_lanes[FLIGHT_LANES];
extern unsigned flight_lane_end;

/* A stream is about to be destroyed; its work goes on. */
void flight_end_stream(CUstream stream);

/* Likewise, for a visitor: work in it that has no mark behind it is charged as expected. */
void flight_leave_stream(CUstream stream);

/* A context ends, or with NULL any may, and its marks with it: the work that they would have
 * measured is charged as expected. */
void flight_forget(CUcontext context);

/* The process was suspended: work up to now is charged as expected, since its measured times may
 * include the suspension. */
void flight_skip_suspension(uint64_t now);

void flight_after_fork(void);

#endif
