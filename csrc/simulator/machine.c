/* SPDX-License-Identifier: Apache-2.0 */
/* machine.c -- finds the machine's folder and maps its state. Its processes are in slot.c. */
#include "machine.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fault.h"

#define STATE_MAGIC   UINT64_C(0x6d697375677670) /* "pvgusim" */
#define STATE_VERSION 10

static const char variable[] = "PYVGPU_SIMULATED_MACHINE";

static struct machine the_machine;
static enum machine_result opened = MACHINE_ABSENT;
static bool complained;
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;

__attribute__((format(printf, 1, 2))) static void complain(const char *format, ...)
{
    va_list arguments;
    char line[2 * PATH_MAX];

    if (complained)
        return;
    complained = true;
    va_start(arguments, format);
    vsnprintf(line, sizeof(line), format, arguments);
    va_end(arguments);
    fprintf(stderr, "pyvgpu simulator: %s\n", line);
}

bool machine_beside(const char *name, char *path, size_t size)
{
    Dl_info self;
    const char *slash;

    if (!dladdr(&the_machine, &self) || !self.dli_fname)
        return false;
    slash = strrchr(self.dli_fname, '/');
    return snprintf(path, size, "%.*s%s", slash ? (int) (slash + 1 - self.dli_fname) : 0,
                    self.dli_fname, name) < (int) size;
}

/* The folder, by the variable or beside this library. */
static enum machine_result find_folder(char *folder)
{
    const char *named = getenv(variable);
    char path[PATH_MAX];

    if (named && *named) {
        if (*named != '/' || strlen(named) >= MACHINE_PATH) {
            complain("%s=%s: must be the absolute path of a machine folder, such as "
                     "/dev/shm/machine",
                     variable, named);
            return MACHINE_BROKEN;
        }
        strcpy(folder, named);
        return MACHINE_READY;
    }
    if (machine_beside(MACHINE_LINK, path, sizeof(path)) && strlen(path) < MACHINE_PATH &&
        access(path, F_OK) == 0) {
        /* Kept absolute: the program may change its folder. */
        if (!realpath(path, folder) || strlen(folder) >= MACHINE_PATH)
            return MACHINE_BROKEN;
        return MACHINE_READY;
    }
    complain("no machine: set %s to the folder of a simulated machine, or use pyvgpu run "
             "--simulate h100",
             variable);
    return MACHINE_ABSENT;
}

static char *read_text(const char *path)
{
    FILE *file = fopen(path, "re");
    char *text = NULL;
    size_t size = 0;

    if (!file)
        return NULL;
    if (getdelim(&text, &size, '\0', file) < 0) {
        free(text);
        text = ferror(file) ? NULL : strdup("");
    }
    fclose(file);
    return text;
}

static enum machine_result read_config(struct machine *machine)
{
    char path[MACHINE_PATH + 32];
    char error[256];
    char *text;

    snprintf(path, sizeof(path), "%s/machine.conf", machine->folder);
    text = read_text(path);
    if (!text) {
        complain("%s: cannot be read: %s", path, strerror(errno));
        return MACHINE_BROKEN;
    }
    if (config_parse(text, &machine->config, error, sizeof(error))) {
        complain("%s: %s", path, error);
        free(text);
        return MACHINE_BROKEN;
    }
    free(text);
    return MACHINE_READY;
}

int machine_open_file(const char *path, int flags)
{
    struct stat folder;
    char parent[PATH_MAX];
    char *slash;

    /* Creation is a step of its own: in a sticky folder the kernel refuses O_CREAT on another
     * user's file (fs.protected_regular), although opening it is allowed. */
    for (;;) {
        int fd = open(path, flags | O_CLOEXEC | O_NOFOLLOW);
        if (fd >= 0 || errno != ENOENT)
            return fd;
        fd = open(path, flags | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd < 0 && errno == EEXIST)
            continue;
        if (fd < 0)
            return fd;
        snprintf(parent, sizeof(parent), "%s", path);
        slash = strrchr(parent, '/');
        if (slash)
            *slash = '\0';
        if (stat(parent, &folder) == 0 && folder.st_mode & S_IWOTH && fchmod(fd, 0666)) {
            close(fd);
            return -1;
        }
        return fd;
    }
}

void machine_make_lock(pthread_mutex_t *lock)
{
    pthread_mutexattr_t attributes;

    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(lock, &attributes);
    pthread_mutexattr_destroy(&attributes);
}

static size_t state_size(const struct machine *machine)
{
    return sizeof(struct machine_state) +
           machine->config.unit_count * sizeof(((struct machine_state *) NULL)->lanes[0]);
}

static void initialise_state(const struct machine *machine, struct machine_state *state)
{
    machine_make_lock(&state->lock);
    for (uint32_t i = 0; i < CONFIG_DEVICES; i++) {
        machine_make_lock(&state->devices[i].lock);
        machine_make_lock(&state->accounts[i].lock);
        state->accounts[i].peak = UINT64_MAX;
        if (i < machine->config.device_count)
            state->devices[i].model.units = machine->config.devices[i].sm_count;
    }
    state->version = STATE_VERSION;
    state->device_count = machine->config.device_count;
    state->size = state_size(machine);
    state->index = (struct machine_index) {
        .slot_count = MACHINE_SLOTS,
        .slot_size = sizeof(struct machine_slot),
        .slots = offsetof(struct machine_state, slots),
        .accounts = offsetof(struct machine_state, accounts[0].used),
        .uses = offsetof(struct machine_state, uses),
        .shares = offsetof(struct machine_state, shares),
        .share_count = MACHINE_SHARES,
    };
    __atomic_store_n(&state->magic, STATE_MAGIC, __ATOMIC_RELEASE);
}

/* Initialise or check the file, which the caller has locked. */
static enum machine_result prepare_state(struct machine *machine, const char *path, int fd)
{
    const size_t size = state_size(machine);
    struct machine_state *state;
    struct stat file;

    if (fstat(fd, &file) || (file.st_size == 0 && ftruncate(fd, (off_t) size))) {
        complain("%s: cannot be made: %s", path, strerror(errno));
        return MACHINE_BROKEN;
    }
    if (file.st_size != 0 && file.st_size != (off_t) size) {
        complain("%s: in use by another version of the simulator, or damaged; end its programs, "
                 "or remove the machine's folder",
                 path);
        return MACHINE_BROKEN;
    }
    state = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (state == MAP_FAILED) {
        complain("%s: cannot be mapped: %s", path, strerror(errno));
        return MACHINE_BROKEN;
    }
    /* A full file system would otherwise raise SIGBUS later. */
    if (madvise(state, offsetof(struct machine_state, uses), MADV_POPULATE_WRITE) &&
        errno != EINVAL) {
        complain("%s: there is no room for it: is the file system full?", path);
        munmap(state, size);
        return MACHINE_BROKEN;
    }
    if (!state->magic)
        initialise_state(machine, state);
    if (state->magic != STATE_MAGIC || state->version != STATE_VERSION || state->size != size ||
        state->device_count != machine->config.device_count) {
        complain("%s: not the state of this machine; remove it while no process uses the machine",
                 path);
        munmap(state, size);
        return MACHINE_BROKEN;
    }
    machine->state = state;
    return MACHINE_READY;
}

/* Whether another version of the simulator made the file, and no process of it lives. */
static bool is_left_by_another_version(int fd)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    char head[offsetof(struct machine_state, device_count)];
    uint32_t version;

    if (pread(fd, head, sizeof(head), 0) != (ssize_t) sizeof(head))
        return false;
    memcpy(&version, head + offsetof(struct machine_state, version), sizeof(version));
    return version != 0 && version != STATE_VERSION && fcntl(fd, F_OFD_GETLK, &lock) == 0 &&
           lock.l_type == F_UNLCK;
}

static enum machine_result map_state(struct machine *machine)
{
    enum machine_result result;
    char path[MACHINE_PATH + 32];
    int fd;

    snprintf(path, sizeof(path), "%s/state", machine->folder);
    for (;;) {
        fd = machine_open_file(path, O_RDWR);
        if (fd < 0) {
            complain("%s: cannot be opened: %s", path, strerror(errno));
            return MACHINE_BROKEN;
        }
        while (flock(fd, LOCK_EX) && errno == EINTR)
            continue;
        if (!is_left_by_another_version(fd) || unlink(path))
            break;
        close(fd); /* and with it the lock */
    }
    result = prepare_state(machine, path, fd);
    flock(fd, LOCK_UN); /* close would not: the mapping keeps the description open */
    close(fd);
    return result;
}

enum machine_result machine_open(struct machine **machine)
{
    pthread_mutex_lock(&opening);
    if (opened != MACHINE_READY) {
        opened = find_folder(the_machine.folder);
        if (opened == MACHINE_READY)
            opened = read_config(&the_machine);
        if (opened == MACHINE_READY)
            opened = map_state(&the_machine);
    }
    *machine = opened == MACHINE_READY ? &the_machine : NULL;
    if (*machine)
        fault_poll(*machine);
    pthread_mutex_unlock(&opening);
    return opened;
}

void machine_lock_slots(struct machine *machine)
{
    machine_lock(&machine->state->lock);
}

void machine_unlock_slots(struct machine *machine)
{
    pthread_mutex_unlock(&machine->state->lock);
}

void machine_lock_device(struct machine *machine, uint32_t device)
{
    machine_lock(&machine->state->devices[device].lock);
}

void machine_unlock_device(struct machine *machine, uint32_t device)
{
    pthread_mutex_unlock(&machine->state->devices[device].lock);
}
