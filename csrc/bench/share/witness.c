/* SPDX-License-Identifier: Apache-2.0 */
/* witness.c -- records how much device time each process of a simulated device got.
 *
 *   witness PERIOD_NS      then "FROM UNTIL", ns of CLOCK_MONOTONIC, on standard input
 *
 * Every PERIOD_NS it advances the device to now and prints a line: the time, then PID:USED_NS for
 * each process: the union of the times in which its kernels and copies ran. Work is counted while
 * it runs, not when it is done, and independently of the shim's and the programs' own reports.
 */
#include "clock.h"
#include "machine.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { DEVICE = 0 };

static void write_down(struct machine *machine)
{
    const struct machine_state *state = machine->state;

    machine_advance_device(machine, DEVICE); /* the device's lock is held after it */
    printf("%" PRIu64, state->devices[DEVICE].model.now);
    for (uint32_t slot = 0; slot < state->slot_limit; slot++)
        if (machine_slot_is_live(machine, slot))
            printf(" %" PRIu32 ":%" PRIu64, state->slots[slot].pid,
                   state->lanes[DEVICE][slot].used_ns);
    machine_unlock_device(machine, DEVICE);
    putchar('\n');
}

int main(int argc, char **argv)
{
    uint64_t period, from, until;
    struct machine *machine;

    period = argc == 2 ? strtoull(argv[1], NULL, 10) : 0;
    if (!period) {
        fputs("usage: witness PERIOD_NS, such as witness 5000000\n", stderr);
        return 2;
    }
    if (machine_open(&machine) != MACHINE_READY)
        return 1;
    puts("ready");
    fflush(stdout);
    if (scanf("%" SCNu64 " %" SCNu64, &from, &until) != 2)
        return 1;
    for (uint64_t then = from; then <= until; then += period) {
        while (clock_now() < then)
            clock_sleep_until(then);
        write_down(machine);
        if (fflush(stdout) != 0) /* after each line: it may be killed at any moment */
            return 1;
    }
    return 0;
}
