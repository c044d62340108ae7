/* SPDX-License-Identifier: Apache-2.0 */
/* requests.c -- server workload: each request launches some kernels and waits for them.
 *
 * Reports the latency of requests: from the first launch until the thread knows that all are done.
 */
#include "bench/draw.h"
#include "bench/samples.h"
#include "kinds.h"
#include "program.h"

enum {
    MOST = 1 << 16,
    WARM = 8, /* warm-up requests: the shim does not know their shapes yet */
};

static uint64_t latencies[MOST];

static uint64_t at(size_t count, size_t per_thousand)
{
    return count ? latencies[(count - 1) * per_thousand / 1000] : 0;
}

/* Wait a random time between 0.5 and 1.5 times the period. */
static void wait_for_next(uint64_t period_ns)
{
    if (period_ns)
        program_sleep_until(program_now() + period_ns / 2 + draw() % period_ns);
}

void requests_run(void)
{
    struct shape shape = {program_function(0), BLOCKS, THREADS, 0};
    uint64_t kernels = program.more[0] ? program.more[0] : 1;
    CUstream stream = program_stream();
    struct caller caller;
    size_t count = 0;
    unsigned warm = 0;

    program_begin_caller(&caller);
    while (program_goes_on() && count < MOST) {
        uint64_t from = program_now();

        for (uint64_t i = 0; i < kernels; i++)
            program_launch_caller(&caller, &shape, program.length_ns, stream);
        program_check("cuStreamSynchronize", cuStreamSynchronize(stream));
        if (warm++ >= WARM)
            latencies[count++] = program_now() - from;
        wait_for_next(program.more[1]);
    }
    program_end_caller(&caller);
    samples_sort(latencies, count);
    program_tell_caller(&caller, NULL, 0);
    program_tell("requests", count);
    program_tell("p50_ns", at(count, 500));
    program_tell("p99_ns", at(count, 990));
    program_tell("slowest_ns", at(count, 1000));
}
