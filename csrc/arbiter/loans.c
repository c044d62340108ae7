/* SPDX-License-Identifier: Apache-2.0 */
/* loans.c -- lends unused shares to elastic containers; see loans.h. */
#include "arbiter/loans.h"
#include "core/number.h"

/* A container that waits has too little. One that no longer waits may owe that to the lent time, as
 * long as it uses more than its share. */
static int wants_more(const struct lending_container *tenant, uint64_t now)
{
    if (tenant->limit <= tenant->own)
        return 0;
    return loans_is_recent(tenant->waited_ns, now, LOANS_WANT_NS) ||
           (loans_is_recent(tenant->active_ns, now, LOANS_WANT_NS) && tenant->used > tenant->own);
}

/* The part of its share that is kept for a container. All of it from the tick on in which it has
 * work again; some of it can be lent only if it used less for a while and never waited. */
static uint32_t claim_of(const struct lending_container *tenant, uint64_t now)
{
    if (!loans_is_recent(tenant->active_ns, now, LOANS_IDLE_NS) &&
        !loans_is_recent(tenant->waited_ns, now, LOANS_IDLE_NS))
        return 0;
    if (loans_is_recent(tenant->waited_ns, now, LOANS_WANT_NS) ||
        loans_is_recent(tenant->woken_ns, now, LOANS_WANT_NS))
        return tenant->own;
    return (uint32_t) least(tenant->own, tenant->used + tenant->used / 4 + CLOCK_WHOLE / 50);
}

/* The most that a container may be lent, for each CLOCK_WHOLE of its share. */
static uint64_t most_for(const struct lending_container *tenant, uint64_t now)
{
    if (!tenant->own || !wants_more(tenant, now))
        return 0;
    return (uint64_t) (tenant->limit - tenant->own) * CLOCK_WHOLE / tenant->own;
}

/* Divide *spare* among the containers of a *priority* in proportion to their shares. What exceeds a
 * container's limit goes to the others. */
static uint32_t divide(struct lending_container *const *tenants, unsigned count,
                       enum lending_priority priority, uint64_t now, uint64_t spare)
{
    uint64_t lent = 0;

    for (;;) {
        uint64_t next = UINT32_MAX; /* at which the next container reaches its limit */
        uint64_t sharing = 0;

        for (unsigned i = 0; i < count; i++) {
            uint64_t most = tenants[i]->priority == priority ? most_for(tenants[i], now) : 0;

            if (most > lent) {
                next = least(next, most);
                sharing += tenants[i]->own;
            }
        }
        if (!sharing || spare * CLOCK_WHOLE / sharing < next - lent)
            return (uint32_t) (sharing ? lent + spare * CLOCK_WHOLE / sharing : lent);
        spare -= (next - lent) * sharing / CLOCK_WHOLE;
        lent = next;
    }
}

/* The time that cannot be lent to containers of a *priority* because of this one. */
static uint64_t kept_for(const struct lending_container *tenant, enum lending_priority priority,
                         uint64_t now)
{
    if (tenant->priority == LENDING_LOW && priority > LENDING_LOW)
        return 0;
    if (!wants_more(tenant, now))
        return claim_of(tenant, now);
    if (tenant->priority <= priority)
        return tenant->own;
    return least(tenant->limit, tenant->own + (uint64_t) tenant->own * tenant->lent / CLOCK_WHOLE);
}

uint32_t loans_make(struct lending_container *const *tenants, unsigned count, uint64_t now)
{
    uint32_t most = 0;

    for (int priority = LENDING_HIGH; priority >= LENDING_LOW; priority--) {
        uint64_t kept = 0;
        uint32_t lent;

        for (unsigned i = 0; i < count; i++)
            kept += kept_for(tenants[i], (enum lending_priority) priority, now);
        lent = kept < CLOCK_WHOLE ? divide(tenants, count, (enum lending_priority) priority, now,
                                           CLOCK_WHOLE - kept)
                                  : 0;
        for (unsigned i = 0; i < count; i++)
            if (tenants[i]->priority == (enum lending_priority) priority)
                tenants[i]->lent = lent;
        most = lent > most ? lent : most;
    }
    return most;
}
