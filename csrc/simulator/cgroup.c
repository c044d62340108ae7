/* SPDX-License-Identifier: Apache-2.0 */
/* cgroup.c -- limits of device memory for cgroups; see cgroup.h. */
#include "cgroup.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "machine.h"

#define CGROUP2_MAGIC 0x63677270

enum { BY_DRIVER = 1, BY_KERNEL = 2 }; /* cgroup_limits */

/* PIDFD_GET_INFO of Linux 6.13, missing from the headers of older systems. */
struct pidfd_answer {
    uint64_t mask;
    uint64_t cgroup;
    uint32_t others[12];
};
#define PIDFD_ASK    _IOWR(0xff, 11, struct pidfd_answer)
#define PIDFD_CGROUP UINT64_C(4)

/* The innermost cgroup's ID, which needs no mounted cgroup file system. */
static uint64_t ask_kernel(void)
{
    struct pidfd_answer answer = {.mask = PIDFD_CGROUP};
    int fd = (int) syscall(SYS_pidfd_open, getpid(), 0);
    bool is_known =
        fd >= 0 && ioctl(fd, PIDFD_ASK, &answer) == 0 && (answer.mask & PIDFD_CGROUP) != 0;

    if (fd >= 0)
        close(fd);
    return is_known ? answer.cgroup : 0;
}

/* The path of this process's cgroup in its cgroup namespace. False: there is none. */
static bool read_own(char path[CGROUP_PATH])
{
    FILE *file = fopen("/proc/self/cgroup", "re");
    char line[PATH_MAX];
    bool is_found = false;

    while (file && !is_found && fgets(line, sizeof(line), file))
        is_found = sscanf(line, "0::%511[^\n]", path) == 1;
    if (file)
        fclose(file);
    return is_found;
}

/* Find the mount point of cgroup version 2, and the cgroup at its root. */
static bool find_mount(char top[CGROUP_PATH], char point[CGROUP_PATH])
{
    FILE *file = fopen("/proc/self/mountinfo", "re");
    char line[2 * PATH_MAX], format[32];
    bool is_found = false;

    while (file && !is_found && fgets(line, sizeof(line), file)) {
        const char *rest = strstr(line, " - ");
        is_found = rest && sscanf(rest, " - %31s", format) == 1 && !strcmp(format, "cgroup2") &&
                   sscanf(line, "%*s %*s %*s %511s %511s", top, point) == 2;
    }
    if (file)
        fclose(file);
    return is_found;
}

void cgroup_find(struct cgroup_chain *chain)
{
    char own[CGROUP_PATH], top[CGROUP_PATH], point[CGROUP_PATH], path[2 * CGROUP_PATH];
    const char *below = own;
    unsigned int level = 0;
    struct stat found;

    *chain = (struct cgroup_chain) {{0}};
    if (!read_own(own) || !find_mount(top, point)) {
        chain->ids[0] = ask_kernel();
        return;
    }
    if (strcmp(top, "/") != 0 && !strncmp(own, top, strlen(top)))
        below += strlen(top);
    snprintf(path, sizeof(path), "%s%s", point, strcmp(below, "/") ? below : "");
    while (level < CGROUP_LEVELS && strlen(path) >= strlen(point)) {
        if (stat(path, &found) == 0)
            chain->ids[level++] = found.st_ino;
        *strrchr(path, '/') = '\0';
    }
    if (!level)
        chain->ids[0] = ask_kernel();
}

/* Read the cgroup's ID: 0, or an errno. */
static int identify(const char *path, uint64_t *id)
{
    struct statfs system;
    struct stat found;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int error = 0;

    if (fd < 0)
        return errno;
    if (fstat(fd, &found) || fstatfs(fd, &system))
        error = errno;
    else if (system.f_type != CGROUP2_MAGIC)
        error = EINVAL;
    else
        *id = found.st_ino;
    close(fd);
    return error;
}

static bool is_of(const struct cgroup_limit *limit, uint32_t device, uint64_t id)
{
    return atomic_load_explicit(&limit->id, memory_order_acquire) == id && limit->device == device;
}

static struct cgroup_limit *find(const struct machine *machine, uint32_t device, uint64_t id)
{
    struct cgroup_table *table = &machine->state->cgroups;
    uint32_t end = atomic_load_explicit(&table->end, memory_order_acquire);

    for (uint32_t i = 0; id && i < end; i++)
        if (is_of(&table->limits[i], device, id))
            return &table->limits[i];
    return NULL;
}

/* Does a process in these cgroups count for the limit? */
static bool counts(const struct machine *machine, const struct cgroup_chain *chain,
                   const struct cgroup_limit *limit)
{
    uint64_t id = atomic_load(&limit->id);

    for (unsigned int level = 0; level < CGROUP_LEVELS && chain->ids[level]; level++) {
        if (chain->ids[level] == id)
            return true;
        if (machine->config.law.cgroup_limits == BY_DRIVER &&
            find(machine, (uint32_t) limit->device, chain->ids[level]))
            return false; /* it has a nearer one */
    }
    return false;
}

static uint64_t add_up(const struct machine *machine, const struct cgroup_limit *limit)
{
    const struct machine_state *state = machine->state;
    uint32_t end = atomic_load_explicit(&state->slot_limit, memory_order_acquire);
    uint64_t sum = 0;

    for (uint32_t slot = 0; slot < end; slot++) {
        uint64_t bytes = atomic_load(&state->uses[limit->device][slot].bytes);
        if (bytes && counts(machine, &state->chains[slot], limit))
            sum += bytes;
    }
    return sum;
}

static bool has_limits(const struct machine *machine)
{
    return machine->config.law.cgroup_limits &&
           atomic_load_explicit(&machine->state->cgroups.end, memory_order_acquire);
}

bool cgroup_read(const struct machine *machine, uint32_t device, const struct cgroup_chain *chain,
                 struct cgroup_figures *figures)
{
    const struct cgroup_limit *limit;
    uint64_t least = UINT64_MAX;

    if (!has_limits(machine))
        return false;
    for (unsigned int level = 0; level < CGROUP_LEVELS && chain->ids[level]; level++) {
        uint64_t hard, used;

        limit = find(machine, device, chain->ids[level]);
        if (!limit)
            continue;
        hard = atomic_load(&limit->hard);
        used = add_up(machine, limit);
        if (used < hard ? hard - used < least : least) {
            least = used < hard ? hard - used : 0;
            *figures = (struct cgroup_figures) {limit->soft, hard, used};
        }
        if (machine->config.law.cgroup_limits == BY_DRIVER)
            return true;
    }
    return least != UINT64_MAX;
}

bool cgroup_allows(const struct machine *machine, uint32_t device, uint32_t slot, uint64_t bytes)
{
    struct cgroup_figures figures = {0};

    if (!cgroup_read(machine, device, &machine->state->chains[slot], &figures))
        return true;
    return figures.used <= figures.hard && bytes <= figures.hard - figures.used;
}

/* state->lock held. Drop the limits of removed cgroups; the kernel never reuses their IDs. */
static void forget_removed(struct cgroup_table *table)
{
    for (uint32_t i = 0; i < table->end; i++) {
        uint64_t id = 0;
        if (identify(table->limits[i].path, &id) || id != table->limits[i].id)
            atomic_store(&table->limits[i].id, 0);
    }
}

/* state->lock held. A free entry, or NULL. */
static struct cgroup_limit *find_free(struct cgroup_table *table)
{
    for (uint32_t i = 0; i < table->end; i++)
        if (!table->limits[i].id)
            return &table->limits[i];
    return table->end < CGROUP_LIMITS ? &table->limits[table->end] : NULL;
}

/* state->lock held. */
static int set(struct machine *machine, const struct cgroup_limit *wanted)
{
    struct cgroup_table *table = &machine->state->cgroups;
    struct cgroup_limit *limit = find(machine, (uint32_t) wanted->device, wanted->id);

    if (!wanted->soft && wanted->hard == CGROUP_NO_LIMIT) {
        if (limit)
            atomic_store(&limit->id, 0);
        return 0;
    }
    if (limit) {
        limit->soft = wanted->soft;
        atomic_store(&limit->hard, wanted->hard);
        return 0;
    }
    limit = find_free(table);
    if (!limit) {
        forget_removed(table);
        limit = find_free(table);
    }
    if (!limit)
        return ENOSPC;
    limit->device = wanted->device;
    limit->soft = wanted->soft;
    atomic_store(&limit->hard, wanted->hard);
    memcpy(limit->path, wanted->path, sizeof(limit->path));
    atomic_store_explicit(&limit->id, wanted->id, memory_order_release);
    if (limit == &table->limits[table->end])
        atomic_store_explicit(&table->end, table->end + 1, memory_order_release);
    return 0;
}

int cgroup_set(struct machine *machine, uint32_t device, const char *path, uint64_t soft,
               uint64_t hard)
{
    struct cgroup_limit wanted = {.device = device, .soft = soft, .hard = hard};
    uint64_t id = 0;
    int error = strlen(path) < sizeof(wanted.path) ? identify(path, &id) : ENAMETOOLONG;

    if (error)
        return error;
    wanted.id = id;
    snprintf(wanted.path, sizeof(wanted.path), "%s", path);
    machine_lock_slots(machine);
    error = set(machine, &wanted);
    machine_unlock_slots(machine);
    return error;
}

int cgroup_get(struct machine *machine, uint32_t device, const char *path,
               struct cgroup_figures *figures)
{
    const struct cgroup_limit *limit;
    uint64_t id = 0;
    int error = identify(path, &id);

    if (error)
        return error;
    *figures = (struct cgroup_figures) {.hard = CGROUP_NO_LIMIT};
    machine_lock_slots(machine);
    limit = find(machine, device, id);
    if (limit)
        *figures = (struct cgroup_figures) {limit->soft, limit->hard, add_up(machine, limit)};
    machine_unlock_slots(machine);
    return 0;
}
