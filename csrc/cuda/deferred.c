/* SPDX-License-Identifier: Apache-2.0 */
/* deferred.c -- frees on streams, settled when their event is past; see deferred.h. */
#include "cuda/deferred.h"
#include "driver.h"
#include "shim.h"

#include <pthread.h>
#include <stdlib.h>

struct deferred {
    struct deferred *next;
    CUevent event;
    uint32_t device;
    uint64_t bytes;
};

int deferred_count;

static struct deferred *waiting;
static pthread_mutex_t lock =
    PTHREAD_MUTEX_INITIALIZER; /* never held while the device is waited for */

void deferred_add(const struct allocation *allocation, CUstream stream,
                  CUresult (*record)(CUevent, CUstream))
{
    struct deferred *deferred = malloc(sizeof(*deferred));

    /* Without an event nobody can tell when: then the charge stays until the process ends. */
    if (!deferred || driver.cuEventCreate(&deferred->event, CU_EVENT_DISABLE_TIMING)) {
        free(deferred);
        return;
    }
    if (record(deferred->event, stream) != CUDA_SUCCESS) {
        driver.cuEventDestroy_v2(deferred->event);
        free(deferred);
        return;
    }
    deferred->device = allocation->device;
    deferred->bytes = allocation->bytes;
    pthread_mutex_lock(&lock);
    deferred->next = waiting;
    waiting = deferred;
    __atomic_add_fetch(&deferred_count, 1, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&lock);
}

void deferred_settle_all(void)
{
    struct deferred **link = &waiting;

    pthread_mutex_lock(&lock);
    while (*link) {
        struct deferred *deferred = *link;

        /* Any other answer than "not yet" is an end: the context may be gone, with the memory. */
        if (driver.cuEventQuery(deferred->event) == CUDA_ERROR_NOT_READY) {
            link = &deferred->next;
            continue;
        }
        *link = deferred->next;
        __atomic_sub_fetch(&deferred_count, 1, __ATOMIC_RELEASE);
        ledger_refund(&shim.ledger, deferred->device, deferred->bytes);
        driver.cuEventDestroy_v2(deferred->event);
        free(deferred);
    }
    pthread_mutex_unlock(&lock);
}

void deferred_after_fork(void)
{
    pthread_mutex_init(&lock, NULL);
    waiting = NULL;
    deferred_count = 0;
}
