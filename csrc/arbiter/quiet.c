/* SPDX-License-Identifier: Apache-2.0 */
/* quiet.c -- quiet moments; see quiet.h. */
#include "arbiter/fluid.h"

#define MILLISECOND UINT64_C(1000000)

#define HUSH_NS        (25 * MILLISECOND) /* from one tick: it ends so soon if we do */
#define AGAIN_NS       (25 * MILLISECOND) /* in which all others begin again after a moment */
#define PATIENCE_NS    (30 * MILLISECOND) /* for others, besides what they have begun */
#define OUTSTANDING_NS (300 * MILLISECOND)
#define SHORTEST_NS    (50 * MILLISECOND) /* a moment is allowed to be, */
#define LONGEST_NS     (400 * MILLISECOND)
#define PAUSE_TIMES    8 /* what was of no use is not repeated for that many times its length */
#define IDLE_NS        (6 * MILLISECOND) /* who does so long nothing in its moment has no use of it */

#define PART_OF 33 /* of all time, what quiet moments may take */

static int64_t smaller(int64_t one, int64_t other)
{
    return one < other ? one : other;
}

static uint64_t within(uint64_t value, uint64_t low, uint64_t high)
{
    return value < low ? low : value > high ? high : value;
}

static const struct fluid_lane *lane_of(const struct fluid_tenant *tenant, uint32_t slot)
{
    return slot < tenant->lane_count ? &tenant->lanes[slot] : NULL;
}

static int wishes(const struct fluid_tenant *tenant, uint64_t now)
{
    return tenant->quiet.wish_ns > now && lane_of(tenant, tenant->quiet.wish_slot);
}

/* Who had work since the last tick: nobody, one, or several (2). */
static int who_worked(struct fluid_tenant *const *tenants, unsigned count,
                      struct fluid_tenant **owner, uint32_t *slot)
{
    int found = 0;

    for (unsigned i = 0; i < count; i++)
        for (unsigned j = 0; j < tenants[i]->lane_count; j++)
            if (tenants[i]->lanes[j].known && !tenants[i]->lanes[j].still) {
                if (found++)
                    return found;
                *owner = tenants[i];
                *slot = j;
            }
    return found;
}

/* If nobody has work, the guest is told so, since it waits for that. */
static void note_who_is_alone(struct quiet *quiet, struct fluid_tenant *const *tenants,
                              unsigned count, uint64_t before, uint64_t now)
{
    struct fluid_tenant *owner = quiet->guest;
    uint32_t slot = quiet->guest_slot;
    int found = who_worked(tenants, count, &owner, &slot);

    if (found > 1) {
        quiet->only_from_ns = 0;
        quiet->only = NULL;
        return;
    }
    if (!quiet->only_from_ns)
        quiet->only_from_ns = before;
    if (!owner)
        return;
    if (quiet->only && (quiet->only != owner || quiet->only_slot != slot))
        quiet->only_from_ns = before;
    quiet->only = owner;
    quiet->only_slot = slot;
    owner->quiet.alone = slot + 1;
    owner->quiet.alone_from_ns = quiet->only_from_ns;
    owner->quiet.alone_until_ns = now;
}

/* What others have begun and not finished, as far as it is to be waited for. */
static uint64_t outstanding(struct fluid_tenant *const *tenants, unsigned count)
{
    uint64_t sum = 0;

    for (unsigned i = 0; i < count; i++)
        for (unsigned j = 0; j < tenants[i]->lane_count; j++) {
            const struct fluid_lane *lane = &tenants[i]->lanes[j];

            sum += (uint64_t) (lane->seen.begun - lane->seen.finished) * WORK_UNIT_NS;
            if (sum > OUTSTANDING_NS)
                return OUTSTANDING_NS;
        }
    return sum;
}

static void begin(struct quiet *quiet, struct fluid_tenant *const *tenants, unsigned count,
                  struct fluid_tenant *guest, uint64_t now)
{
    quiet->guest = guest;
    quiet->guest_slot = guest->quiet.wish_slot;
    quiet->asked_ns = now;
    quiet->patience_ns = PATIENCE_NS + outstanding(tenants, count);
    quiet->longest_ns = within(guest->quiet.wish_for_ns, SHORTEST_NS, LONGEST_NS);
    quiet->alone_ns = 0;
    guest->quiet.given_ns = now;
    guest->quiet.spared = quiet->guest_slot + 1;
}

/* The moment is over, and was of use or not. */
static void end(struct quiet *quiet, int of_use, uint64_t now)
{
    struct quiet_seat *seat = &quiet->guest->quiet;

    seat->spared = 0;
    if (!of_use)
        seat->refused_ns = now + PAUSE_TIMES * (now - quiet->asked_ns);
    quiet->guest = NULL;
}

static int is_alone(const struct quiet *quiet)
{
    return quiet->only_from_ns && quiet->only == quiet->guest &&
           quiet->only_slot == quiet->guest_slot;
}

/* Whether the moment has come to nothing: others do not stop, or it does nothing with it. */
static int is_useless(const struct quiet *quiet, uint64_t now)
{
    uint64_t asked = now - quiet->asked_ns;
    uint64_t alone = now - quiet->alone_ns;

    if (!quiet->alone_ns)
        return asked > quiet->patience_ns;
    if (alone > IDLE_NS && lane_of(quiet->guest, quiet->guest_slot)->still)
        return 1;
    return alone > quiet->longest_ns || asked > quiet->patience_ns + quiet->longest_ns;
}

static void go_on(struct quiet *quiet, uint64_t now)
{
    const struct quiet_seat *seat = &quiet->guest->quiet;

    if (!is_alone(quiet))
        quiet->alone_ns = 0;
    else if (!quiet->alone_ns)
        quiet->alone_ns = now;
    if (!wishes(quiet->guest, now) || seat->wish_slot != quiet->guest_slot)
        end(quiet, 1, now);
    else if (is_useless(quiet, now))
        end(quiet, 0, now);
}

/* Who was given none for the longest time. */
static struct fluid_tenant *next_guest(struct fluid_tenant *const *tenants, unsigned count,
                                       uint64_t now)
{
    struct fluid_tenant *next = NULL;

    for (unsigned i = 0; i < count; i++)
        if (wishes(tenants[i], now) && tenants[i]->quiet.refused_ns <= now &&
            (!next || tenants[i]->quiet.given_ns < next->quiet.given_ns))
            next = tenants[i];
    return next;
}

void quiet_tick(struct quiet *quiet, struct fluid_tenant *const *tenants, unsigned count,
                uint64_t before, uint64_t now)
{
    struct fluid_tenant *guest;

    note_who_is_alone(quiet, tenants, count, before, now);
    quiet->allowed_ns += (int64_t) (now - before) / PART_OF;
    if (quiet->guest) {
        quiet->allowed_ns -= (int64_t) (now - before);
        go_on(quiet, now);
    }
    quiet->allowed_ns = smaller(quiet->allowed_ns, QUIET_SAVED_NS);
    guest = quiet->guest || quiet->allowed_ns <= 0 ? NULL : next_guest(tenants, count, now);
    if (guest)
        begin(quiet, tenants, count, guest, now);
    quiet->hush_ns = quiet->guest ? now + HUSH_NS : 0;
    if (quiet->guest)
        quiet->lively_ns = now + AGAIN_NS;
}

void quiet_seat(struct quiet *quiet, struct fluid_tenant *const *tenants, unsigned count)
{
    struct fluid_tenant *guest = NULL;

    for (unsigned i = 0; i < count; i++)
        if (tenants[i] == quiet->guest)
            guest = quiet->guest;
    quiet->guest = guest;
    quiet->only = NULL;
    quiet->only_from_ns = 0;
}
