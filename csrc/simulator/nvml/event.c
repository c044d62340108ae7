/* SPDX-License-Identifier: Apache-2.0 */
/* event.c -- event sets. There is one kind of event: an Xid from the faults file.
 *
 * Every time that file is written, each `xid DEVICE NUMBER` in it is delivered once to every
 * set that was registered for the device before. A waiter waits for a change of the machine's
 * folder, and checks the file each second anyway, since not all file systems report changes;
 * without inotify it polls ten times a second. There is no thread and no state in the machine.
 */
#include "api.h"
#include "source.h"

#include "../fault.h"
#include "../machine.h"

#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <time.h>
#include <unistd.h>

#define KNOWN_TYPES                                                                          \
    (nvmlEventTypeSingleBitEccError | nvmlEventTypeDoubleBitEccError | nvmlEventTypePState | \
     nvmlEventTypeXidCriticalError | nvmlEventTypeClock)
#define POLL_NS  100000000L
#define WATCH_MS 1000

enum { EVENT_QUEUE = 64 };

struct nvmlEventSet_st {
    pthread_mutex_t lock;
    unsigned long long types[SOURCE_DEVICES];
    uint64_t stamp; /* of the faults file, as last read */
    int watch;      /* readable once a file of the machine's folder has changed; -1: none */
    size_t first, count;
    nvmlEventData_t queue[EVENT_QUEUE];
};

static int watch_folder(void)
{
    int watch = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);

    if (watch >= 0 && inotify_add_watch(watch, source_machine()->folder,
                                        IN_CLOSE_WRITE | IN_MOVED_TO | IN_DELETE) < 0) {
        close(watch);
        return -1;
    }
    return watch;
}

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
    ENTER();
    REQUIRE(set);
    *set = calloc(1, sizeof(**set));
    if (!*set)
        return NVML_ERROR_MEMORY;
    pthread_mutex_init(&(*set)->lock, NULL);
    (*set)->watch = watch_folder();
    (*set)->stamp = source_faults_stamp();
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
    ENTER();
    REQUIRE(set);
    if (set->watch >= 0)
        close(set->watch);
    pthread_mutex_destroy(&set->lock);
    free(set);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types)
{
    ENTER_DEVICE(device);
    REQUIRE(types);
    *types = KNOWN_TYPES;
    return NVML_SUCCESS;
}

static void add_event(void *context, const struct fault_xid *xid)
{
    struct nvmlEventSet_st *set = context;

    if (xid->device >= nvml_device_count() ||
        !(set->types[xid->device] & nvmlEventTypeXidCriticalError) || set->count == EVENT_QUEUE)
        return;
    set->queue[(set->first + set->count++) % EVENT_QUEUE] = (nvmlEventData_t) {
        .device = nvml_device(xid->device),
        .eventType = nvmlEventTypeXidCriticalError,
        .eventData = xid->number,
        .gpuInstanceId = xid->gpu_instance,
        .computeInstanceId = xid->compute_instance,
    };
}

/* Collect the events since the set's last check. Called with its lock held. */
static void read_faults(struct nvmlEventSet_st *set)
{
    uint64_t stamp = source_faults_stamp();

    if (stamp != set->stamp)
        source_xids(add_event, set);
    set->stamp = stamp;
}

nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types,
                                      nvmlEventSet_t set)
{
    ENTER_DEVICE(device);
    REQUIRE(set);
    if (types & ~(unsigned long long) KNOWN_TYPES)
        return NVML_ERROR_NOT_SUPPORTED;
    pthread_mutex_lock(&set->lock);
    read_faults(set); /* so that this device gets no earlier events */
    set->types[device->index] |= types;
    pthread_mutex_unlock(&set->lock);
    return NVML_SUCCESS;
}

static bool take(struct nvmlEventSet_st *set, nvmlEventData_t *event)
{
    pthread_mutex_lock(&set->lock);
    read_faults(set);
    bool any = set->count != 0;
    if (any) {
        *event = set->queue[set->first];
        set->first = (set->first + 1) % EVENT_QUEUE;
        set->count--;
    }
    pthread_mutex_unlock(&set->lock);
    return any;
}

static uint64_t now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t) now.tv_sec * 1000 + (uint64_t) now.tv_nsec / 1000000;
}

static void wait_for_change(int watch, uint64_t for_ms)
{
    char changes[1024];

    if (watch < 0) {
        nanosleep(&(struct timespec) {.tv_nsec = POLL_NS}, NULL);
        return;
    }
    poll(&(struct pollfd) {.fd = watch, .events = POLLIN}, 1,
         for_ms > WATCH_MS ? WATCH_MS : (int) for_ms);
    while (read(watch, changes, sizeof(changes)) > 0)
        ;
}

static nvmlReturn_t wait_for_event(nvmlEventSet_t set, nvmlEventData_t *event,
                                   unsigned int timeout_ms)
{
    uint64_t end = now_ms() + timeout_ms;

    while (!take(set, event)) {
        uint64_t now = now_ms();

        if (now >= end)
            return NVML_ERROR_TIMEOUT;
        wait_for_change(set->watch, end - now);
    }
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *event,
                                 unsigned int timeout_ms)
{
    ENTER();
    REQUIRE(set && event);
    memset(event, 0, sizeof(*event));
    return wait_for_event(set, event, timeout_ms);
}

/* The first form has no instance ids at the end of the structure. */
nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *event, unsigned int timeout_ms)
{
    nvmlEventData_t whole;

    ENTER();
    REQUIRE(set && event);
    nvmlReturn_t result = wait_for_event(set, &whole, timeout_ms);
    if (result == NVML_SUCCESS)
        memcpy(event, &whole, offsetof(nvmlEventData_t, gpuInstanceId));
    return result;
}
