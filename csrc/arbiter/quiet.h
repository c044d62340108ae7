/* SPDX-License-Identifier: Apache-2.0 */
/* quiet.h -- who has the device to itself, and moments in which somebody is given it.
 *
 * What a launch takes of the device is only certain where it was measured alone. A process that has
 * met its like only beside others wishes for a quiet moment: all others are told to begin nothing
 * more, and once what they have begun is done, it is alone, until its wish is gone. One at a time;
 * a moment that is of no use is given up, and not repeated soon; and all of them together take a
 * small part of the device's time.
 *
 * That a process was alone is only said afterwards, when all others were seen not to have begun
 * anything since.
 *
 * Pure, as fluid.h, of which it is a part.
 */
#ifndef PYVGPU_ARBITER_QUIET_H
#define PYVGPU_ARBITER_QUIET_H

#include <stdint.h>

/* What moments may take at once, if there were none for long. */
#define QUIET_SAVED_NS INT64_C(500000000)

struct fluid_tenant;

struct quiet_seat { /* of one container */
    /* in */
    uint64_t wish_ns;     /* up to when its process wishes for a quiet moment; 0: it does not */
    uint64_t wish_for_ns; /* how long that is to be */
    uint32_t wish_slot;   /* the process */
    /* out: see clock_file */
    uint32_t spared;
    uint32_t alone;
    uint64_t alone_from_ns;
    uint64_t alone_until_ns;
    /* own */
    uint64_t refused_ns; /* up to when it is given none */
    uint64_t given_ns;   /* when it was given the last one */
};

struct quiet {                       /* of one device */
    uint64_t hush_ns;                /* out: see clock_file; 0: there is no hush */
    uint64_t lively_ns;              /* out: up to when all that waited for its end begins again */
    const struct fluid_tenant *only; /* whose process alone had work; NULL: none had any */
    uint32_t only_slot;
    uint64_t only_from_ns;      /* since when; 0: there are several */
    struct fluid_tenant *guest; /* whose moment it is; NULL: nobody's */
    uint32_t guest_slot;
    uint64_t asked_ns;    /* when the others were first asked for it */
    uint64_t patience_ns; /* how long that may take */
    uint64_t longest_ns;  /* how long the moment may be then */
    uint64_t alone_ns;    /* since when it is alone; 0: not yet */
    int64_t allowed_ns;   /* how long others may still be made to wait */
};

/* All processes were seen; what was not yet known is what happened from *before* to *now*. */
void quiet_tick(struct quiet *quiet, struct fluid_tenant *const *tenants, unsigned count,
                uint64_t before, uint64_t now);

/* There are other containers than at the last tick. */
void quiet_seat(struct quiet *quiet, struct fluid_tenant *const *tenants, unsigned count);

#endif
