/* SPDX-License-Identifier: Apache-2.0 */
/* call.c -- times a call, phase by phase; see call.h. */
#include "call.h"
#include "crowd.h"

#include <sched.h>
#include <stdio.h>

static const struct call *measured;
static struct samples samples;
static __thread size_t warm_up = WARM_UP;

void call_open(void)
{
    library_open_cuda();
    library_make_context();
}

static void take(uint64_t *values, size_t count)
{
    for (size_t i = 0; i < warm_up; i++)
        measured->time();
    for (size_t i = 0; i < count; i++)
        values[i] = measured->time();
    warm_up = WARM_UP_AGAIN;
}

static unsigned takers(void)
{
    if (measured->threads)
        return measured->threads;
    return measured->processes && !measured->first_alone ? measured->processes : 1;
}

/* Pin members evenly over the processors: the scheduler would put those that were woken together
 * on the same one. */
static void take_processor(unsigned index)
{
    cpu_set_t allowed, own;
    unsigned place;

    if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0)
        return;
    place = index % (unsigned) CPU_COUNT(&allowed);
    CPU_ZERO(&own);
    for (int processor = 0; processor < CPU_SETSIZE; processor++)
        if (CPU_ISSET(processor, &allowed) && place-- == 0)
            CPU_SET(processor, &own);
    sched_setaffinity(0, sizeof(own), &own);
}

static void prepare_member(unsigned index)
{
    take_processor(index);
    if (measured->processes)
        measured->prepare();
    if (measured->begin)
        measured->begin();
}

static void act(unsigned index, uint64_t released_ns)
{
    size_t share = samples.capacity / takers();

    (void) released_ns;
    if (index < takers())
        take(samples.values + index * share, share);
}

static void go_on(void)
{
    for (int i = 0; i < 100; i++)
        measured->time();
}

static struct crowd *start_crowd(void)
{
    static const struct crowd_role all = {prepare_member, act, go_on};
    static const struct crowd_role first = {prepare_member, act, NULL};
    const struct crowd_role *role = measured->first_alone ? &first : &all;

    if (measured->processes)
        return crowd_start(CROWD_PROCESSES, measured->processes, role);
    measured->prepare();
    if (measured->threads)
        return crowd_start(CROWD_THREADS, measured->threads, role);
    if (measured->begin)
        measured->begin();
    return NULL;
}

/* Skip a line of standard input: 0 at its end. */
static int read_line(void)
{
    int character;

    do
        character = getchar();
    while (character != '\n' && character != EOF);
    return character != EOF;
}

void call_measure(const struct call *call, size_t count, int by_lines)
{
    struct crowd *crowd;

    measured = call;
    timer_calibrate();
    samples = samples_make(count / takers() * takers());
    crowd = start_crowd();
    for (int phase = 0; by_lines ? read_line() : phase == 0; phase++) {
        timer_calibrate_own();
        if (crowd)
            crowd_act(crowd);
        else
            take(samples.values, samples.capacity);
        samples_report_ticks(call->name, &samples);
    }
    if (crowd)
        crowd_end(crowd);
}
