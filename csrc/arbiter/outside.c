/* SPDX-License-Identifier: Apache-2.0 */
/* outside.c -- samples NVML five times a second; see outside.h. */
#include "arbiter/outside.h"
#include "core/compiler.h"
#include "core/visible.h"

#include <dlfcn.h>
#include <nvml.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <time.h>

#define PERIOD_NS UINT64_C(200000000) /* about how often NVML's own figures change */
#define FRESH_NS  UINT64_C(1000000000)

enum { DEVICES = 64, SAMPLES = 1024 };

static struct {
    nvmlReturn_t (*init)(void);
    nvmlReturn_t (*handle)(const char *, nvmlDevice_t *);
    nvmlReturn_t (*rates)(nvmlDevice_t, nvmlUtilization_t *);
    nvmlReturn_t (*processes)(nvmlDevice_t, nvmlProcessUtilizationSample_t *, unsigned *,
                              unsigned long long);
} nvml;

static struct asked {
    uint8_t uuid[16];
    uint64_t until_ns; /* sampled until then; 0: the entry is unused */
    struct outside seen;
} devices[DEVICES];

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wanted = PTHREAD_COND_INITIALIZER; /* a device is to be sampled */
static const char *library;

static int load(void)
{
    void *file = dlopen(library, RTLD_NOW | RTLD_LOCAL);

    if (!file)
        return 0;
    *(void **) &nvml.init = dlsym(file, "nvmlInit_v2");
    *(void **) &nvml.handle = dlsym(file, "nvmlDeviceGetHandleByUUID");
    *(void **) &nvml.rates = dlsym(file, "nvmlDeviceGetUtilizationRates");
    *(void **) &nvml.processes = dlsym(file, "nvmlDeviceGetProcessUtilization");
    return nvml.init && nvml.handle && nvml.rates && nvml.processes && nvml.init() == NVML_SUCCESS;
}

/* The processes that have used the device in the last second. */
static void note_processes(nvmlDevice_t device, struct outside *seen)
{
    static nvmlProcessUtilizationSample_t samples[SAMPLES];
    unsigned count = SAMPLES;
    unsigned long long since =
        (unsigned long long) (clock_now_ns(CLOCK_REALTIME) - FRESH_NS) / 1000;

    if (nvml.processes(device, samples, &count, since) != NVML_SUCCESS)
        return;
    for (unsigned i = 0; i < count && seen->count < OUTSIDE_PIDS; i++)
        if (samples[i].smUtil && samples[i].timeStamp > since)
            seen->pids[seen->count++] = samples[i].pid;
}

static void ask(const uint8_t uuid[16], struct outside *seen)
{
    char text[VISIBLE_UUID_TEXT];
    nvmlDevice_t device;
    nvmlUtilization_t rates;

    memset(seen, 0, sizeof(*seen));
    visible_uuid_text(uuid, 0, text);
    nvmlReturn_t found = nvml.handle(text, &device);
    if (found == NVML_ERROR_NOT_FOUND) {
        visible_uuid_text(uuid, 1, text);
        found = nvml.handle(text, &device);
    }
    if (found != NVML_SUCCESS || nvml.rates(device, &rates) != NVML_SUCCESS)
        return;
    seen->load = rates.gpu;
    note_processes(device, seen);
    seen->at_ns = clock_now_ns(CLOCK_MONOTONIC);
}

static void ask_all(void)
{
    for (unsigned i = 0; i < DEVICES; i++) {
        struct asked asked;
        struct outside seen;

        pthread_mutex_lock(&lock);
        asked = devices[i];
        pthread_mutex_unlock(&lock);
        if (asked.until_ns < clock_now_ns(CLOCK_MONOTONIC))
            continue;
        ask(asked.uuid, &seen);
        pthread_mutex_lock(&lock);
        if (memcmp(devices[i].uuid, asked.uuid, sizeof(asked.uuid)) == 0)
            devices[i].seen = seen;
        pthread_mutex_unlock(&lock);
    }
}

static int is_asked(void)
{
    uint64_t now = clock_now_ns(CLOCK_MONOTONIC);

    for (unsigned i = 0; i < DEVICES; i++)
        if (devices[i].until_ns > now)
            return 1;
    return 0;
}

static void *watch(void *unused)
{
    const struct timespec period = {.tv_nsec = (long) PERIOD_NS};

    if (!load())
        return unused;
    for (;;) {
        pthread_mutex_lock(&lock);
        while (!is_asked())
            pthread_cond_wait(&wanted, &lock);
        pthread_mutex_unlock(&lock);
        ask_all();
        clock_nanosleep(CLOCK_MONOTONIC, 0, &period, NULL);
    }
}

void outside_start(const char *libnvidia_ml)
{
    sigset_t all, before;
    pthread_t thread;

    library = libnvidia_ml;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before); /* the main thread handles signals */
    if (pthread_create(&thread, NULL, watch, NULL) == 0)
        pthread_detach(thread);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

int outside_read(const uint8_t uuid[16], uint64_t now, struct outside *seen)
{
    struct asked *asked = NULL;
    int known;

    if (!library)
        return 0;
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < DEVICES; i++) {
        if (devices[i].until_ns && memcmp(devices[i].uuid, uuid, sizeof(devices[i].uuid)) == 0) {
            asked = &devices[i];
            break;
        }
        if (!asked && devices[i].until_ns < now) /* unused, or no longer sampled */
            asked = &devices[i];
    }
    if (asked && memcmp(asked->uuid, uuid, sizeof(asked->uuid)) != 0) {
        memcpy(asked->uuid, uuid, sizeof(asked->uuid));
        asked->seen.at_ns = 0;
    }
    if (asked) {
        asked->until_ns = now + FRESH_NS;
        pthread_cond_signal(&wanted); /* always: the thread may have seen until_ns pass */
    }
    known = asked && asked->seen.at_ns && now - asked->seen.at_ns < FRESH_NS;
    if (known)
        *seen = asked->seen;
    pthread_mutex_unlock(&lock);
    return known;
}
