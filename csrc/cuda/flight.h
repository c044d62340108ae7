/* SPDX-License-Identifier: Apache-2.0 */
/* flight.h -- what this process has given to its devices and not seen finished.
 *
 * A lane is a stream as one thread uses it. What the thread launches in it is cut into pieces, each
 * some milliseconds of expected work, by marks (mark.h): the device passes the mark behind a piece
 * when all of it is done. Pieces of a lane end in their order; lanes know nothing of each other. A
 * piece behind something that the stream waits for has a mark before it too, and counts as begun
 * once that was passed.
 *
 * To learn what a shape costs, now and then one launch is a piece of its own.
 *
 * flight_lane() is for the thread that launches; all else is for the one that has the marks.
 */
#ifndef PYVGPU_CUDA_FLIGHT_H
#define PYVGPU_CUDA_FLIGHT_H

#include "clock.h"
#include "costs.h"
#include "cuda/context.h"
#include "cuda/mark.h"
#include "governor.h"

enum {
    FLIGHT_LANES = 256,
    FLIGHT_PIECES = 16, /* of a lane that have not been seen finished; more become one */
    FLIGHT_OWN = 8,     /* lanes that a thread finds at once */
};

/* What a lane needs before its next launch. */
enum flight_need {
    FLIGHT_NOTHING,
    FLIGHT_OPEN,   /* a new piece */
    FLIGHT_SAMPLE, /* to be measured by itself, perhaps */
    FLIGHT_WAITS   /* a new piece, which begins when what the stream waits for is over */
};

struct flight_piece {
    struct mark begin; /* none: it begins when the device is done with what was before */
    struct mark end;
    uint64_t opened_ns; /* it did not begin before */
    uint64_t given_ns;  /* all of it was with the driver */
    int64_t spent_ns;   /* of the lane, when it was opened */
    int64_t expected_ns;
    int waits;         /* until the mark before it was passed, it is not begun */
    int guessed;       /* nothing was known of some of it, */
    int unsure;        /* or not for sure */
    struct cost *cost; /* it is one launch, of this shape; or NULL */
    struct costs_key key;
    int crowded;  /* other streams had work when it began */
    int is_empty; /* to learn what marks take themselves */
};

struct pace_device;

struct flight_lane {
    /* of its thread */
    int64_t left_ns; /* of what was bought */
    uint32_t need;   /* enum flight_need; others set it, too */
    uintptr_t name;  /* see flight_name(); 0: free */
    const char *thread;
    struct pace_device *device;
    /* of the one that has the marks */
    struct stream stream;
    CUcontext context; /* that its stream belongs to; NULL: to whichever is current */
    int64_t bought_ns;
    int64_t chunk_ns;    /* how much is bought at once, at most */
    uint64_t visited_ns; /* when it was last bought; 0: it has waited since */
    uint64_t end_ns;     /* on the governor's axis: what was bought is expected to end there */
    struct mark last;    /* behind its last piece that is done, or */
    uint64_t done_ns;    /* when it was seen to have nothing */
    uint64_t sampled_ns; /* when a launch was last a piece of its own */
    unsigned idle_samples;
    int surprise; /* its work took much longer than expected, and no launch was measured since */
    uint64_t axis_ns;  /* on that axis: where its first piece began, */
    uint64_t late_ns;  /* and up to where that has certainly been running by now */
    uint64_t since_ns; /* of what is in it nothing ran before, that is not done */
    int by_clock;      /* its marks fail: it is at work until its stream is seen to be idle */
    int is_begun;      /* of what is in it, something is not done, and does not wait */
    int is_held;       /* all that is in it waits for something else */
    unsigned first, count;
    struct flight_piece pieces[FLIGHT_PIECES];
    int is_open;
    struct flight_piece open;
    uint64_t
        waited_ns; /* since when a thread has waited for what is in it, perhaps among others, */
    int64_t waited_for_ns; /* and how much that was */
    int is_waited_for;     /* nothing but its stream is waited for */
    int is_done;           /* that was: it is about to be noted idle */
    int doubted;           /* so many waits are marked yet: one took longer than expected */
};

extern __thread char flight_thread __attribute__((tls_model("initial-exec")));
extern __thread struct flight_lane *flight_own[FLIGHT_OWN]
    __attribute__((tls_model("initial-exec")));

/* What tells streams apart: the default stream of a thread goes by a name of the thread. */
static inline uintptr_t flight_name(const struct stream *stream)
{
    if (likely(context_owns_stream(stream->handle)))
        return (uintptr_t) stream->handle;
    return stream->handle == CU_STREAM_PER_THREAD || (stream->per_thread && !stream->handle)
               ? (uintptr_t) &flight_thread
               : (uintptr_t) CU_STREAM_LEGACY;
}

static inline unsigned flight_place(uintptr_t name)
{
    return (unsigned) (name >> 4 ^ name >> 8) % FLIGHT_OWN;
}

/* The lane of the calling thread in a stream of *device*; NULL if it has none, or not at hand. */
static inline struct flight_lane *flight_lane(const struct pace_device *device, uintptr_t name)
{
    struct flight_lane *lane = flight_own[flight_place(name)];

    return likely(lane) && likely(lane->name == name) && likely(lane->thread == &flight_thread) &&
                   likely(lane->device == device)
               ? lane
               : NULL;
}

/* Whether what is launched next may wait for something else than the device. */
static inline int flight_waits(const struct flight_lane *lane)
{
    return lane->need == FLIGHT_WAITS || lane->is_held || lane->open.waits;
}

static inline int64_t flight_spent(const struct flight_lane *lane)
{
    return lane->bought_ns - __atomic_load_n(&lane->left_ns, __ATOMIC_RELAXED);
}

/* The same, and if it has none it gets one; NULL if all are in use. */
struct flight_lane *flight_take_lane(struct pace_device *device, const struct stream *stream);

/* The thread is about to launch in *lane*, which is expected to take *ns*: cut pieces as is due.
 * *cost* is its shape. 1: the launch is a piece of its own; flight_end_sample() when it was
 * given, or *not marked*: it goes on as any other. */
int flight_begin(struct flight_lane *lane, const struct costs_key *key, struct cost *cost);
void flight_end_sample(struct flight_lane *lane, int marked);

/* End the open piece if there is more than *least_ns* of expected work in it. */
#define FLIGHT_CLOSE_NS INT64_C(250000) /* before a thread waits, and sees what it has done */
void flight_close(struct flight_lane *lane, int64_t least_ns);

/* A thread is about to wait for what is in the lane: *alone*, or for that among others. */
void flight_note_wait(struct flight_lane *lane, int alone, uint64_t now);

/* A wait for the lane is over: whether nothing was launched in it since that began. */
int flight_has_ended(const struct flight_lane *lane);

/* How much work of the open piece need not be marked for that. */
int64_t flight_unmarked(const struct flight_lane *lane);

/* Whether all that is in it waits for something else than the device. */
int flight_is_held(const struct flight_lane *lane);

/* The device has done all that this lane was given. */
void flight_note_idle(struct flight_lane *lane, const struct clock_view *clock,
                      struct governor *governor, uint64_t now);

/* The device has got work that is in no lane: nobody will know when it is done. */
void flight_note_unseen(struct pace_device *device);

/* If the device has done all that it was given: what is launched next comes through flight_begin().
 */
void flight_note_rest(struct pace_device *device, uint64_t now);

/* See what is done, and tell the governor. */
void flight_look(struct pace_device *device, struct governor *governor,
                 const struct clock_view *clock, uint64_t now);

/* Whether other threads launch, too. */
int flight_has_others(void);

/* Whether the device has something to do of this process, as was seen last. */
int flight_has_begun(const struct pace_device *device);

/* How many lanes of the device have something in flight, 1 at least. */
int flight_lanes_begun(const struct pace_device *device);

/* Do something with each lane that is in use. */
#define FLIGHT_EACH(lane)                                                                        \
    for (struct flight_lane *lane = flight_lanes; lane < flight_lanes + flight_lane_end; lane++) \
        if (lane->name)

extern struct flight_lane flight_lanes[FLIGHT_LANES];
extern unsigned flight_lane_end;

/* A stream is about to end; what is in it goes on. */
void flight_end_stream(CUstream stream);

/* A context ends, or with NULL any may, and with it marks: what they would have measured counts as
 * expected. */
void flight_forget(CUcontext context);

void flight_after_fork(void);

#endif
