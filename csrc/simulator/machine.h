/* SPDX-License-Identifier: Apache-2.0 */
/* machine.h -- the simulated machine: its folder, its shared state and its processes.
 *
 * Both libraries use this; it knows neither CUDA nor NVML. The state is one file, mapped by every
 * process. A process that uses CUDA owns a slot by an open-file-description lock that lasts exactly
 * as long as its mapping: killed means unlocked. A call that reads free memory or lists processes,
 * or is about to refuse memory, reaps dead processes first (machine_reap).
 *
 * Locks, in this order: state->lock (slots), state->devices[i].lock (a device's time),
 * state->accounts[i].lock (its bytes). All are robust and held for short, bounded work.
 */
#ifndef PYVGPU_SIMULATOR_MACHINE_H
#define PYVGPU_SIMULATOR_MACHINE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cgroup.h"
#include "config.h"
#include "model.h"

enum {
    MACHINE_SLOTS = MODEL_LANES,
    MACHINE_SHARES = 16384,
    MACHINE_PATH = 512,
    MACHINE_NOTES = 64,
    MACHINE_INSIDE = 8,
};

enum machine_slot_state { SLOT_FREE, SLOT_LIVE };

struct machine_slot {
    _Atomic uint32_t state;
    uint32_t pid;           /* in its own PID namespace */
    uint64_t generation;    /* incremented each time the slot is claimed */
    uint64_t start_time_ns; /* CLOCK_REALTIME */
    uint64_t memory_files;  /* bit per device for which a file with a name may be there */
    uint64_t pid_namespace;
    _Atomic uint32_t
        mps_server; /* the slot of the MPS server that it is a client of, + 1; 0: none */
    _Atomic uint32_t mps_error; /* a CUresult that its calls return from now on; see mps.h */
    uint64_t unused[2];
};

/* A process on a device; a cache line of its own, because its owner writes it often. */
struct machine_use {
    _Atomic uint64_t bytes;    /* contexts and allocations */
    _Atomic uint32_t contexts; /* open now */
    uint32_t unused[13];
};

/* A device's bytes in use; uses[] has them by process. Python reads it too. */
struct machine_account {
    pthread_mutex_t lock;
    uint64_t used;   /* the sum of uses[] and shares on their own, whenever the lock is free */
    uint64_t peak;   /* highest value of used since it was set to 0; until then UINT64_MAX */
    uint64_t buried; /* bytes reclaimed from dead processes so far */
};

/* History of a device's bytes in use, for NVML, which shows them with a delay. */
struct machine_past {
    uint64_t count; /* notes so far; a ring: the n-th is at n modulo MACHINE_NOTES */
    struct {
        uint64_t since_ns;
        uint64_t used;
    } notes[MACHINE_NOTES];
};

/* Threads of a process that are in calls, by groups of threads: a cache line each. */
struct machine_inside {
    _Atomic uint32_t count;
    uint32_t unused[15];
};

/* Suspension of a process by another one; see checkpoint.h. */
struct machine_checkpoint {
    pthread_mutex_t lock;          /* held by the process that acts, for as long as it does */
    _Atomic uint32_t state;        /* enum checkpoint_state */
    _Atomic uint32_t managed;      /* its allocations of managed memory */
    _Atomic uint32_t imports;      /* memory of other processes that it has open */
    _Atomic uint32_t fabric;       /* its multicast objects, and its memory for other nodes */
    uint32_t restores;             /* of this process, so far */
    uint32_t is_ready;             /* the lock is initialised */
    uint32_t is_spoiled;           /* a restore has failed: there is no way back */
    uint32_t pending;              /* state after the action that has begun; 0: none has */
    uint64_t due_ns;               /* when that action ends */
    uint64_t held[CONFIG_DEVICES]; /* bytes that are in host memory meanwhile */
    struct machine_inside inside[MACHINE_INSIDE] __attribute__((aligned(64)));
} __attribute__((aligned(64)));

/* Offsets for readers outside the driver (tests/support/driver_memory.py). */
struct machine_index {
    uint32_t slot_count;
    uint32_t slot_size;
    uint64_t slots;    /* offset of slots */
    uint64_t accounts; /* offset of accounts[0].used; the next one's is a cache line further */
    uint64_t uses;     /* offset of uses[0][0]; they are a cache line each */
    uint64_t shares;   /* offset of shares */
    uint64_t share_count;
};

enum machine_share_state { SHARE_FREE, SHARE_OWNED, SHARE_LEFT /* on its own */ };

/* Exported memory (share.h). */
struct machine_share {
    _Atomic uint32_t state;
    uint32_t device;
    uint32_t slot; /* its owner's */
    uint32_t kind; /* tells importers what it is; never 0 */
    uint64_t id;
    _Atomic uint64_t bytes; /* charged for it */
    uint64_t size;          /* of its memory */
    uint64_t more[3];
};

struct machine_device {
    pthread_mutex_t lock;
    uint64_t reserved[3];
    struct model_device model;
};

struct machine_state {
    uint64_t magic;
    uint32_t version;
    uint32_t device_count;
    uint64_t size;
    struct machine_index index;
    pthread_mutex_t lock;
    _Atomic uint64_t reaped_ns;  /* time of the last reaping */
    _Atomic uint32_t slot_limit; /* slots at and above it were never used */
    uint32_t unused;
    uint32_t share_limit; /* shares at and above it were never used */
    uint64_t last_share_id;
    struct machine_slot slots[MACHINE_SLOTS];
    struct machine_device devices[CONFIG_DEVICES];
    struct machine_account accounts[CONFIG_DEVICES] __attribute__((aligned(64)));
    struct machine_past pasts[CONFIG_DEVICES]; /* each under its account's lock */
    struct machine_use uses[CONFIG_DEVICES][MACHINE_SLOTS] __attribute__((aligned(64)));
    struct machine_share shares[MACHINE_SHARES];
    struct machine_checkpoint checkpoints[MACHINE_SLOTS];
    struct cgroup_table cgroups;
    struct cgroup_chain chains[MACHINE_SLOTS];
    struct model_lane lanes[][MACHINE_SLOTS]; /* one row per device */
};

struct machine {
    struct machine_config config;
    char folder[MACHINE_PATH];
    struct machine_state *state;
    struct machine_checkpoint *own;         /* this process's; NULL before cuInit */
    uint64_t memory_limits[CONFIG_DEVICES]; /* of this process as a client of MPS; 0: none */
};

enum machine_result {
    MACHINE_READY,
    MACHINE_ABSENT, /* no machine is configured */
    MACHINE_BROKEN, /* one is, and it cannot be used */
};

/* The machine of this process, opened by the first call; a failure is printed to standard error.
 * After a fork the child may go on reading it.
 */
enum machine_result machine_open(struct machine **machine);

/* A link to the machine's folder, beside the library of a run. */
#define MACHINE_LINK "simulated-machine"

/* Write the path of a file beside this library; false if it is unknown or longer than *size*. */
bool machine_beside(const char *name, char *path, size_t size);

/* Open the state file again, for a lock of its own; -1 on failure. */
int machine_open_state(const struct machine *machine);

/* Allocate the pages of a part of the state. False (printed to standard error) if the file system
 * is full, which would otherwise raise SIGBUS later.
 */
bool machine_make_pages(const struct machine *machine, const void *from, size_t size);

/* Open or create a file; the folder's mode decides whether other users can use new files. */
int machine_open_file(const char *path, int flags);

/* Claim a slot until the process ends: the slot, or -1 (printed to standard error). */
int machine_claim_slot(struct machine *machine);

/* At a regular exit, release what this process's slot holds; reaping releases the slot itself. */
void machine_release_slot(struct machine *machine, uint32_t slot);

/* The inode of this process's PID namespace; 0 if /proc does not show it. */
uint64_t machine_pid_namespace(void);

/* Let other processes learn which process has the slot: this one. */
void machine_name_owner(const struct machine *machine, uint32_t slot);

/* The pid of the slot's process in this process's PID namespace, or in its own namespace if it has
 * none here. 0: it has ended, or cannot be named.
 */
uint32_t machine_owner(const struct machine *machine, uint32_t slot);

/* Reclaim what dead processes held; at most once in 50 ms unless now is set. */
void machine_reap(struct machine *machine, bool now);

/* The same, and wait for processes that are exiting. */
void machine_bury(struct machine *machine);

/* Bytes that are in use on the device (reap first). */
uint64_t machine_used_bytes(const struct machine *machine, uint32_t device);

/* The same as NVML shows it: with the delay that the machine's law says. */
uint64_t machine_shown_bytes(struct machine *machine, uint32_t device);

/* Drop the history if its times are in the future: the clock restarted at a reboot. */
void machine_forget_past(struct machine *machine, uint32_t device);

/* Charge and discharge bytes of the device to slot. False: they do not fit, even after reaping. */
bool machine_charge(struct machine *machine, uint32_t device, uint32_t slot, uint64_t bytes);
void machine_discharge(struct machine *machine, uint32_t device, uint32_t slot, uint64_t bytes);

/* Take all bytes of slot off the device, into *bytes*; charge as many again as fit. */
void machine_lift(struct machine *machine, uint32_t device, uint32_t slot, uint64_t *bytes);
uint64_t machine_charge_rest(struct machine *machine, uint32_t device, uint32_t slot,
                             uint64_t bytes);

/* Initialise a lock of the state. */
void machine_make_lock(pthread_mutex_t *lock);

/* Move a share's bytes from its owner to the share itself. state->lock held. */
void machine_leave(struct machine *machine, struct machine_share *share);

/* Recompute the sum after shares on their own are gone. */
void machine_recount(struct machine *machine, uint32_t device);

/* Discharge all bytes of slot in an account. */
void machine_discharge_all(struct machine *machine, uint32_t device, uint32_t slot);

/* Lock. True: the last holder died, and the caller must repair the state, which is always possible.
 * A holder that is stopped (SIGSTOP) is continued.
 */
bool machine_lock(pthread_mutex_t *lock);

/* The state of a thread in /proc: T for one that is stopped, and not by a tracer, Z for a zombie;
 * 0 if there is no such thread. */
char machine_thread_state(int thread);

/* state->lock. */
void machine_lock_slots(struct machine *machine);
void machine_unlock_slots(struct machine *machine);

/* Allocate the pages of a process's lane on a device, except its places; those of some places. */
bool machine_make_lane(struct machine *machine, uint32_t device, uint32_t slot);
bool machine_make_places(struct machine *machine, uint32_t device, uint32_t slot, uint32_t first,
                         uint32_t count);

/* A device's time. Callers of model_*() hold the device's lock. */
struct model machine_model(struct machine *machine, uint32_t device);
void machine_lock_device(struct machine *machine, uint32_t device);
void machine_unlock_device(struct machine *machine, uint32_t device);

/* Bring the device's time up to now, letting others in between; the lock is held after it. */
void machine_advance_device(struct machine *machine, uint32_t device);

/* Path of the file with the memory of a process on a device, for importers. */
void machine_memory_path(const struct machine *machine, uint32_t slot, uint64_t generation,
                         uint32_t device, char *path, size_t size);

/* For each slot below state->slot_limit: is a process there? */
static inline bool machine_slot_is_live(const struct machine *machine, uint32_t slot)
{
    return atomic_load_explicit(&machine->state->slots[slot].state, memory_order_acquire) ==
           SLOT_LIVE;
}

#endif
