/* SPDX-License-Identifier: Apache-2.0 */
/* ipc_imports.c -- a short list, whose lock is never held during a driver call; see ipc_imports.h.
 */
#include "shim/cuda/memory/ipc_imports.h"
#include "shim/cuda/memory/entry.h"
#include "shim/suspension.h"
#include "core/mutex.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

struct opened {
    struct opened *next;
    struct allocation allocation;
    unsigned opens;
};

static struct opened *all;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* The link to the record of *address*, or to where it would be. Lock held. */
static struct opened **find(CUdeviceptr address)
{
    struct opened **place = &all;

    while (*place && (*place)->allocation.address != address)
        place = &(*place)->next;
    return place;
}

/* Memory of another container: only it has the export. */
static int is_foreign(const struct opened *opened)
{
    return !opened->allocation.link;
}

/* Lock held. */
static void unhook(struct opened **place)
{
    struct opened *opened = *place;

    if (is_foreign(opened))
        suspension_count_unmovable(-1);
    *place = opened->next;
    free(opened);
}

int ipc_imports_add(const struct allocation *allocation)
{
    struct opened *made = malloc(sizeof(*made));
    struct opened *opened;

    if (!made)
        return -ENOMEM;
    *made = (struct opened) {.allocation = *allocation, .opens = 1};
    mutex_lock(&lock, LOCK_IPC_IMPORTS);
    opened = *find(allocation->address);
    if (opened) {
        opened->opens++;
    } else {
        made->next = all;
        all = made;
        if (is_foreign(made))
            suspension_count_unmovable(1);
    }
    mutex_unlock(&lock, LOCK_IPC_IMPORTS);
    if (opened) {
        free(made);
        entry_release(allocation);
    } else if (context_life(allocation->owner) != allocation->life) {
        ipc_imports_context_ended(allocation->owner); /* the context was destroyed meanwhile */
    }
    return 0;
}

int ipc_imports_take(CUdeviceptr address, struct allocation *taken)
{
    struct opened **place;
    struct opened *opened;

    mutex_lock(&lock, LOCK_IPC_IMPORTS);
    place = find(address);
    opened = *place;
    if (opened) {
        *taken = opened->allocation;
        if (--opened->opens == 0) {
            unhook(place);
        } else {
            taken->bytes = 0;
            taken->link = 0;
        }
    }
    mutex_unlock(&lock, LOCK_IPC_IMPORTS);
    return opened != NULL;
}

void ipc_imports_context_ended(const struct context *owner)
{
    struct opened **place = &all;

    mutex_lock(&lock, LOCK_IPC_IMPORTS);
    while (*place) {
        struct allocation *allocation = &(*place)->allocation;

        if (allocation->owner == owner && allocation->life != context_life(owner)) {
            entry_release(allocation);
            unhook(place);
        } else {
            place = &(*place)->next;
        }
    }
    mutex_unlock(&lock, LOCK_IPC_IMPORTS);
}

void ipc_imports_after_fork(void)
{
    pthread_mutex_init(&lock, NULL);
    all = NULL;
}
