/* SPDX-License-Identifier: Apache-2.0 */
/* fault.c -- fault injection: reads the faults file and counts calls against it. */
#include "fault.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "clock.h"

enum { FAULTS = 64, FAULT_NAME = 80, POLL_PERIOD_NS = 100000000 };

enum fault_kind {
    FAULT_CALL,
    FAULT_LOST,
    FAULT_MIG,
    FAULT_XID,
    FAULT_COMPUTE_MODE,
    FAULT_MINOR,
    FAULT_RECORD,
};

struct fault {
    enum fault_kind kind;
    char name[FAULT_NAME];
    uint32_t device;
    uint64_t calls_left; /* 0: it has happened */
    bool always;
    uint64_t number; /* result code or Xid */
    uint32_t gpu_instance, compute_instance;
};

bool fault_armed;
_Atomic uint64_t fault_next_poll;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct fault faults[FAULTS];
static size_t count;
static uint64_t stamp;
static struct stat last;

static bool parse_fault(const char *line, struct fault *fault)
{
    char nth[32];
    char end;
    unsigned long long number;
    unsigned int device;

    *fault = (struct fault) {0};
    if (sscanf(line, "call %79s %31s %llu %c", fault->name, nth, &number, &end) == 3) {
        fault->always = !strcmp(nth, "*");
        fault->calls_left = fault->always ? 1 : strtoull(nth, NULL, 10);
        fault->number = number;
        return fault->calls_left > 0;
    }
    if (!strcmp(line, "record")) {
        fault->kind = FAULT_RECORD;
        return true;
    }
    if (sscanf(line, "lost %u %c", &device, &end) == 1) {
        fault->kind = FAULT_LOST;
        fault->device = device;
        return true;
    }
    if (sscanf(line, "mig %u %c", &device, &end) == 1) {
        fault->kind = FAULT_MIG;
        fault->device = device;
        return true;
    }
    if (sscanf(line, "compute_mode %u %llu %c", &device, &number, &end) == 2) {
        fault->kind = FAULT_COMPUTE_MODE;
        fault->device = device;
        fault->number = number;
        return number <= 3;
    }
    if (sscanf(line, "minor %u %llu %c", &device, &number, &end) == 2) {
        fault->kind = FAULT_MINOR;
        fault->device = device;
        fault->number = number;
        return number <= UINT32_MAX;
    }
    unsigned int gpu_instance = UINT32_MAX, compute_instance = UINT32_MAX;
    int words = sscanf(line, "xid %u %llu %u %u %c", &device, &number, &gpu_instance,
                       &compute_instance, &end);
    if (words == 2 || words == 4) {
        fault->kind = FAULT_XID;
        fault->device = device;
        fault->number = number;
        fault->gpu_instance = gpu_instance;
        fault->compute_instance = compute_instance;
        return true;
    }
    return false;
}

static void read_faults(const char *path)
{
    FILE *file = fopen(path, "re");
    char line[256];

    count = 0;
    while (file && fgets(line, sizeof(line), file)) {
        line[strcspn(line, "\n")] = '\0';
        if (!line[0] || line[0] == '#')
            continue;
        if (count == FAULTS || !parse_fault(line, &faults[count])) {
            fprintf(stderr,
                    "pyvgpu simulator: %s: '%s' is not a valid fault, or there are more than %d; "
                    "valid: "
                    "call cuMemAlloc_v2 3 2\n",
                    path, line, FAULTS);
            continue;
        }
        count++;
    }
    if (file)
        fclose(file);
    fault_armed = false;
    for (size_t i = 0; i < count; i++)
        fault_armed |= faults[i].kind == FAULT_CALL || faults[i].kind == FAULT_LOST ||
                       faults[i].kind == FAULT_RECORD;
}

static bool is_same(const struct stat *a, const struct stat *b)
{
    return a->st_ino == b->st_ino && a->st_size == b->st_size &&
           a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

static void poll_locked(struct machine *machine)
{
    struct stat now = {0};
    char path[MACHINE_PATH + 32];

    snprintf(path, sizeof(path), "%s/faults", machine->folder);
    if (stat(path, &now))
        now = (struct stat) {0};
    if (!is_same(&now, &last)) {
        read_faults(path);
        last = now;
        stamp++;
    }
    atomic_store(&fault_next_poll, clock_coarse() + POLL_PERIOD_NS);
}

void fault_poll(struct machine *machine)
{
    pthread_mutex_lock(&lock);
    poll_locked(machine);
    pthread_mutex_unlock(&lock);
}

static void record_call(const struct machine *machine, const char *name)
{
    char path[MACHINE_PATH + 32];

    snprintf(path, sizeof(path), "%s/calls", machine->folder);
    int file = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (file < 0)
        return;
    dprintf(file, "%s\n", name);
    close(file);
}

int fault_call(struct machine *machine, const char *name)
{
    int code = 0;

    pthread_mutex_lock(&lock);
    if (clock_coarse() >= atomic_load(&fault_next_poll))
        poll_locked(machine);
    for (size_t i = 0; i < count && !code; i++) {
        struct fault *fault = &faults[i];

        if (fault->kind == FAULT_RECORD)
            record_call(machine, name);
        if (fault->kind != FAULT_CALL || !fault->calls_left || strcmp(fault->name, name))
            continue;
        if (fault->always || --fault->calls_left == 0)
            code = (int) fault->number;
    }
    pthread_mutex_unlock(&lock);
    return code;
}

static bool has_fault(enum fault_kind kind, uint32_t device)
{
    bool found = false;

    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < count; i++)
        found |= faults[i].kind == kind && faults[i].device == device;
    pthread_mutex_unlock(&lock);
    return found;
}

bool fault_is_lost(uint32_t device)
{
    return fault_armed && has_fault(FAULT_LOST, device);
}

bool fault_is_mig(uint32_t device)
{
    return has_fault(FAULT_MIG, device);
}

static uint32_t number_of(enum fault_kind kind, uint32_t device, uint32_t otherwise)
{
    uint32_t number = otherwise;

    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < count; i++)
        if (faults[i].kind == kind && faults[i].device == device)
            number = (uint32_t) faults[i].number;
    pthread_mutex_unlock(&lock);
    return number;
}

uint32_t fault_compute_mode(uint32_t device)
{
    return number_of(FAULT_COMPUTE_MODE, device, 0);
}

uint32_t fault_minor(uint32_t device)
{
    return number_of(FAULT_MINOR, device, device);
}

uint64_t fault_stamp(void)
{
    uint64_t now;

    pthread_mutex_lock(&lock);
    now = stamp;
    pthread_mutex_unlock(&lock);
    return now;
}

void fault_each_xid(void (*found)(void *context, const struct fault_xid *xid), void *context)
{
    struct fault copy[FAULTS];
    size_t copied;

    pthread_mutex_lock(&lock);
    copied = count;
    memcpy(copy, faults, copied * sizeof(copy[0]));
    pthread_mutex_unlock(&lock);
    for (size_t i = 0; i < copied; i++)
        if (copy[i].kind == FAULT_XID)
            found(context, &(struct fault_xid) {copy[i].device, copy[i].gpu_instance,
                                                copy[i].compute_instance, copy[i].number});
}

void fault_before_fork(void)
{
    pthread_mutex_lock(&lock);
}

void fault_after_fork(void)
{
    pthread_mutex_unlock(&lock);
}
