/* SPDX-License-Identifier: Apache-2.0 */
/* registry.c -- scans the registries for runs; see registry.h. */
#include "arbiter/registry.h"
#include "core/cleanup.h"

#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#define SETTLED_NS UINT64_C(100000000) /* much longer than the granularity of file times */

static int is_of_root(int registry, const struct stat *status)
{
    struct stat above;

    if (status->st_uid == 0)
        return 1;
    /* In a user namespace without root, root's registry and its parent appear as the overflow
     * UID's. */
    return fstatat(registry, "..", &above, 0) == 0 && above.st_uid == status->st_uid &&
           !(above.st_mode & (S_IWGRP | S_IWOTH));
}

/* Like pyvgpu/machine/reservations.py, accept only a sticky folder as a registry. */
static int open_folder(const struct registries *registries, unsigned index)
{
    const char *path = registries->paths[index];
    int registry = path ? open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;
    struct stat status;

    if (registry < 0)
        return -1;
    if (fstat(registry, &status) == 0 && (status.st_mode & S_ISVTX) &&
        (index > 0 || is_of_root(registry, &status)))
        return registry;
    close(registry);
    return -1;
}

static struct run *find_run(const struct registries *registries, unsigned registry, const char *id)
{
    for (unsigned i = 0; i < registries->count; i++) {
        if (registries->runs[i]->registry == registry && strcmp(registries->runs[i]->id, id) == 0)
            return registries->runs[i];
    }
    return NULL;
}

/* 1 if the entry is a new run. One that is not a run yet may become one, so the registry is
 * re-read. */
static int meet(struct registries *registries, unsigned index, const char *id)
{
    struct run *run = find_run(registries, index, id);
    int new = !run;

    if (new && registries->count < REGISTRY_RUNS)
        run = run_open(registries->opened[index].fd, id);
    if (!run) {
        registries->opened[index].is_read = 0;
        return 0;
    }
    run->found = 1;
    if (new) {
        run->registry = index;
        registries->runs[registries->count++] = run;
    }
    return new;
}

static int read_entries(struct registries *registries, unsigned index)
{
    int registry = openat(registries->opened[index].fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *folder = registry < 0 ? NULL : fdopendir(registry);
    const struct dirent *entry;
    int changed = 0;

    if (!folder) {
        cleanup_close_fd(&registry);
        return 0;
    }
    while ((entry = readdir(folder)) != NULL) {
        if (run_is_named(entry->d_name))
            changed |= meet(registries, index, entry->d_name);
    }
    closedir(folder);
    return changed;
}

static uint64_t in_ns(struct timespec time)
{
    return (uint64_t) time.tv_sec * UINT64_C(1000000000) + (uint64_t) time.tv_nsec;
}

/* Whether no run came or went since the whole registry was read. A folder that changed just now may
 * change again and keep the same modification time. */
static int is_as_it_was(struct open_registry *opened)
{
    struct stat status;
    struct timespec now;
    int same;

    if (fstat(opened->fd, &status) != 0)
        return 0;
    clock_gettime(CLOCK_REALTIME_COARSE, &now);
    same = opened->is_read && in_ns(status.st_mtim) == in_ns(opened->changed);
    opened->changed = status.st_mtim;
    opened->is_read = in_ns(now) > in_ns(status.st_mtim) + SETTLED_NS;
    return same;
}

static int scan_registry(struct registries *registries, unsigned index)
{
    struct open_registry *opened = &registries->opened[index];

    if (!opened->is_open)
        opened->fd = open_folder(registries, index);
    opened->is_open = 1;
    if (opened->fd < 0)
        return 0;
    if (!is_as_it_was(opened))
        return read_entries(registries, index);
    for (unsigned i = 0; i < registries->count; i++)
        registries->runs[i]->found |= registries->runs[i]->registry == index;
    return 0;
}

/* Other folders may have taken their places by the next scan. */
static void close_folders(struct registries *registries)
{
    for (unsigned index = 0; index < REGISTRIES; index++) {
        if (registries->opened[index].is_open)
            cleanup_close_fd(&registries->opened[index].fd);
        registries->opened[index] = (struct open_registry) {.fd = -1};
    }
}

static void drop(struct registries *registries, unsigned i)
{
    run_close(registries->runs[i], registries->clocks);
    registries->runs[i] = registries->runs[--registries->count];
}

int registry_scan(struct registries *registries)
{
    int changed = 0;

    for (unsigned i = 0; i < registries->count; i++)
        registries->runs[i]->found = 0;
    for (unsigned index = 0; index < REGISTRIES; index++)
        changed |= scan_registry(registries, index);
    for (unsigned i = registries->count; i-- > 0;) {
        int refreshed = registries->runs[i]->found ? run_refresh(registries->runs[i]) : -1;

        changed |= refreshed != 0;
        if (refreshed < 0)
            drop(registries, i);
    }
    return changed;
}

int registry_drop_dead(struct registries *registries)
{
    int changed = 0;

    close_folders(registries);
    for (unsigned i = registries->count; i-- > 0;) {
        if (run_lives(registries->runs[i])) {
            run_bury(registries->runs[i]);
        } else {
            drop(registries, i);
            changed = 1;
        }
    }
    return changed;
}

int registry_has_live_run(const struct registries *registries, unsigned index)
{
    int live = 0;

    for (unsigned i = 0; i < registries->count && !live; i++)
        live = registries->runs[i]->registry == index;
    return live;
}

int registry_has_process(const struct registries *registries, const struct process *process)
{
    for (unsigned i = 0; i < registries->count; i++)
        if (run_has(registries->runs[i], process))
            return 1;
    return 0;
}

int registry_reads_clocks_from(const struct registries *registries, const char *folder)
{
    int need = 0;

    for (unsigned index = 0; index < REGISTRIES; index++) {
        cleanup_close int registry = open_folder(registries, index);

        for (unsigned i = 0; i < registries->count && registry >= 0 && !need; i++)
            need = registries->runs[i]->registry == index &&
                   run_links_to(registries->runs[i], registry, folder);
    }
    return need;
}
