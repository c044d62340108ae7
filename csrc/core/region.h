/* SPDX-License-Identifier: Apache-2.0 */
/* region.h -- layout of the files that a container's processes and the node side share.
 *
 * quota: limits, and the node side's measurements. Only the supervisor or the agent writes it; the
 * shim maps it read-only. usage: the ledger, one slot per process. The shims of one container write
 * it, the node side reads it. clock: one per device; the arbiter writes it, shims read it.
 *
 * This header is the only definition: C includes it, and csrc/tools/layout_build.py gives the part
 * between the two marks to cffi for pyvgpu/region. So that part holds plain declarations and
 * integer constants only. Every field has a fixed width, padding is written out, and region.c
 * asserts the offsets. A reader refuses a magic or layout that it does not know.
 */
#ifndef PYVGPU_CORE_REGION_H
#define PYVGPU_CORE_REGION_H

#include <stddef.h>
#include <stdint.h>

/* BEGIN LAYOUT */

#define REGION_DEVICES 16
#define REGION_SLOTS   1024
#define REGION_LINKS   8192

/* Each layout appends the fields so marked below to quota or usage; older files end before them. */
#define REGION_LAYOUT     5
#define REGION_LAYOUT_OLD 1

/* Older shims that know this layout of a clock read only its first page, so header.size is that. */
#define CLOCK_LAYOUT 2
#define CLOCK_PAGE   4096

/* "pyvgpuQ1", "pyvgpuU1", "pyvgpuC1" read as little-endian words */
#define QUOTA_MAGIC 0x3151757067767970
#define USAGE_MAGIC 0x3155757067767970
#define CLOCK_MAGIC 0x3143757067767970

/* Locks are OFD write locks on single bytes, far beyond the data. */
#define QUOTA_LOCK_SUPERVISOR 0x40000000
#define USAGE_LOCK_SLOT       0x40000000

#define QUOTA_SUPERVISED 1 /* the region is closed once QUOTA_LOCK_SUPERVISOR is free */
#define QUOTA_LOW        2 /* its priority; with neither bit it is normal */
#define QUOTA_HIGH       4
#define QUOTA_GATED      8  /* it is being suspended, or is: calls must not begin */
#define QUOTA_SUSPENDED  16 /* its memory is in host memory */
#define QUOTA_KEPT       32 /* suspended, or about to be resumed: its reservation counts */

#define QUOTA_SUSPENSIONS_SHIFT 6 /* from here on: how often it was gated; wraps */
#define QUOTA_SUSPENSIONS_MASK  0x3FFU

#define QUOTA_MIG_SHIFT 16 /* from here on a bit for each device: its UUID reads MIG-, not GPU- */

#define POLICY_HARD    0
#define POLICY_ELASTIC 1
#define POLICY_MPS     2 /* vcore is a percentage of the SMs, by MPS; no launch waits */

/* A word of the ledger: bytes in the low bits, a flag, and above it the number of undecided
 * charges. The flag: one block of these bytes counts only by its state in usage_file.blocks. */
#define LEDGER_BLOCK_SHIFT   51
#define LEDGER_PENDING_SHIFT 52

#define BLOCK_SLOTS  128
#define BLOCK_BYTES  2097152 /* as BLOCKS_BYTES in blocks.h */
#define BLOCK_STATE  3       /* these bits; the others number the times that the flag was set */
#define BLOCK_USED   1       /* memory of the process */
#define BLOCK_CACHED 2       /* freed, and reserved for the next allocation of the process */
#define BLOCK_TAKEN  3       /* no longer reserved: a process was about to refuse an allocation */

/* The word of a link: its slot + 1 in the lowest bits, then its device, its flags, and as many bits
 * of the hash of its key as fit. The slot alone: it is being written. */
#define LINK_SLOT_MASK    0x7ff
#define LINK_DEVICE_SHIFT 11
#define LINK_DEVICE_MASK  0xf
#define LINK_EXPORT       0x008000
#define LINK_IMPORT       0x010000
#define LINK_CARRIED      0x020000 /* an export that marked descriptors carry (fd_marker.h) */
#define LINK_UNTRACKED    0x040000 /* an export given out in a way that has no known end */
#define LINK_FREED        0x080000 /* an export that its owner has freed, or died with */
#define LINK_ENDING       0x100000 /* an export that may be ending now: no import matches it */
#define LINK_HASH_SHIFT   21

#define WORK_UNIT_NS 1024

/* A word of usage_file.idle: high bits: since when a process had no work, CLOCK_MONOTONIC; low
 * bits: for how long; all ones: it still has none. Both in WORK_UNIT_NS; the first one wraps. */
#define IDLE_SLOTS       128
#define IDLE_LENGTH_BITS 24
#define IDLE_LENGTH_MASK 0xffffff

/* A word of usage_file.progress: high bits: a moment, CLOCK_MONOTONIC in WORK_UNIT_NS, which wraps;
 * low half: the device time that the process has had by then, likewise. */
#define PROGRESS_WORDS      32
#define PROGRESS_TIME_SHIFT 34
#define PROGRESS_BEGINS     0x200000000 /* work begins then; else it ends, */
#define PROGRESS_SURE       0x100000000 /* and the time that it took is not a guess */

/* A word of clock_file.others: low bits: ns of the device's time that others had while this
 * container was at work; above: in how many 64ths of the cell it was. */
#define OTHERS_CELLS       512
#define OTHERS_CELL_NS     262144
#define OTHERS_NS_MASK     0x7ffff
#define OTHERS_PARTS_SHIFT 19
#define OTHERS_PARTS_MASK  0x7f
#define OTHERS_UNSURE      0x80000000 /* the ns are not known, or a guess */

#define CLOCK_WHOLE 65536 /* all of a share, or of a device's time */

/* clock_file.above, in clocks of containers of low priority: containers of a higher priority share
 * the device, and none of them has work now, or at least one has. */
#define CLOCK_ABOVE_IDLE 1
#define CLOCK_ABOVE_BUSY 2

#define SLOT_DEAD 1 /* only the exports of the slot's owner are still charged */

struct region_header {
    uint64_t magic;
    uint32_t layout;
    uint32_t size;         /* of the whole file, bytes */
    uint8_t region_id[16]; /* the same in quota and usage of one region */
};

struct quota_device {
    uint8_t uuid[16];
    uint64_t vmemory;         /* bytes this container may hold */
    uint64_t context_reserve; /* bytes charged for each context */
    uint64_t memory_total;    /* bytes of the whole device */
    uint32_t vcore;           /* percent of the device's time, 1 to 100 */
    uint32_t vcore_limit;     /* the most that elastic may reach, vcore to 100 */
    uint32_t policy;          /* POLICY_* */
    uint32_t green_kib;       /* KiB charged for each green context; 0: nothing */
};

struct quota_limits {
    uint64_t generation; /* 0: this copy is not valid */
    uint32_t device_count;
    uint32_t flags;          /* QUOTA_* */
    char driver_release[32]; /* such as 580.65.06, NUL-terminated */
    struct quota_device devices[16];
    uint64_t checksum; /* FNV-1a of everything above in this copy */
};

struct quota_file {
    struct region_header header;
    struct quota_limits limits[2]; /* the valid copy with the higher generation counts */
    uint64_t extra[16][1024];      /* bytes a slot holds beyond its charges, by measurement */
    /* since layout 2 */
    uint64_t extra_total[16]; /* the sum over all slots, which every sum of the ledger counts */
};

struct usage_slot {
    uint32_t pid;           /* as its own PID namespace counts; display only, proves nothing */
    uint32_t state;         /* 0 or SLOT_DEAD */
    uint64_t started_ns;    /* CLOCK_REALTIME at claim */
    char name[16];          /* comm of the process */
    uint64_t refused;       /* charges refused since the claim */
    uint64_t pid_namespace; /* that pid belongs to; 0 if not known */
    uint64_t waiting;       /* its threads in calls that wait for the device (suspension.h) */
    uint64_t unmovable;     /* pieces of memory that no suspension can move, likewise */
};

struct usage_compute {    /* one per device: GPU time of the whole container, see governor.h */
    int64_t budget_ns;    /* work that may still begin; below 0: launches have to wait */
    uint64_t busy_ns;     /* charged since the region was created */
    uint64_t refilled_ns; /* CLOCK_MONOTONIC up to which the budget is filled */
    uint64_t active_ns;   /* CLOCK_MONOTONIC up to which there is work, as far as was foreseen */
    uint64_t waited_ns;   /* total time that launches waited */
    uint64_t waits;       /* number of launches that waited */
    uint64_t spare[3];    /* had a meaning for older arbiters, unless they are 0 */
    int64_t saved_ns;     /* part of the share beyond what budget_ns keeps, see budget.h */
    /* CLOCK_MONOTONIC when streams of a process last worked at the same time, and when the work of
     * one last took longer than expected; 0: never. */
    uint64_t crowded_ns;
    uint64_t doubted_ns;
    uint64_t more_spare[20];
};

struct usage_work {    /* one process on one device; both only grow and wrap, in WORK_UNIT_NS */
    uint32_t begun;    /* GPU time of the work given to the device, as charged */
    uint32_t finished; /* the part of it known to be done */
};

struct usage_link { /* one export or import of shared memory, see shared_memory.h */
    uint64_t word;  /* 0: free */
    uint64_t bytes; /* of an export, as charged */
};

struct usage_file {
    struct region_header header;
    uint32_t high_water; /* this slot and those behind it hold nothing; rises and falls */
    uint32_t reserved;
    uint64_t scanned_ns;      /* CLOCK_MONOTONIC_COARSE of the last search for dead slots */
    uint64_t refused[16];     /* charges refused, by device */
    uint64_t orphaned[16];    /* counted in every sum, no longer written */
    char fd_marker_path[400]; /* paths of the files whose descriptors carry exports (fd_marker.h),
                               each with a NUL, one behind the other; or empty */
    struct usage_slot slots[1024];
    uint64_t charged[16][1024]; /* the ledger: by device, by slot */
    struct usage_work work[16][1024];
    struct usage_compute compute[16];
    /* since layout 2 */
    uint32_t link_end; /* no link was ever made from this one on */
    uint32_t link_reserved;
    uint64_t worked_ns; /* CLOCK_MONOTONIC of a call that uses a device, noted once for each
                           generation of the quota (suspension.h), */
    uint64_t wanted_ns; /* and of the last one that a suspension holds back; 0: never */
    uint64_t link_spare[5];
    struct usage_link links[8192];
    /* since layout 3 */
    uint64_t idle[16][128][2]; /* a process's last two times without work on a device, for the first
                                  slots only, in any order; 0: none */
    /* since layout 4 */
    uint64_t progress[16][128][32]; /* for the same slots, in any order; 0: none */
    /* since layout 5 */
    uint32_t blocks[128][16]; /* BLOCK_*, by slot, by device: a cache line for each slot */
};

struct clock_sample { /* when share_ns had which value */
    uint64_t at_ns;
    uint64_t share_ns;
};

struct clock_alone { /* a time during which no other process had work on the device */
    uint64_t from_ns;
    uint64_t until_ns;
    uint32_t slot; /* of that process, + 1; 0: none */
    uint32_t reserved;
};

struct clock_file { /* one per device and run, written by the arbiter, readable by all */
    struct region_header header;
    uint64_t sequence; /* odd while it is being written */
    uint64_t beat_ns;  /* CLOCK_MONOTONIC of the last write; if it is old, the arbiter is gone */
    uint64_t share_ns; /* processor-sharing time that passed on the device up to beat_ns */
    uint32_t busy;     /* processes with work in flight */
    uint32_t lent;     /* how much elastic containers may have beyond their share, for each
                          CLOCK_WHOLE of it */
    uint32_t newest;   /* of the samples, which are a ring */
    uint32_t tenants;  /* containers that have a share of the device */
    /* In files of older arbiters these are 0, which means none. */
    uint64_t spare_ns;       /* 0: older shims begin nothing up to this time */
    uint64_t alone_from_ns;  /* the last of the moments below, */
    uint64_t alone_until_ns; /* for shims that know no other */
    uint32_t spare_slot;     /* 0, as spare_ns */
    uint32_t alone;          /* its slot + 1; 0: none */
    uint32_t outside;        /* not 0: processes that belong to no container use the device */
    uint32_t above;          /* CLOCK_ABOVE_*; changes between beats, too */
    uint32_t spared;         /* not 0: no other container had work since the last beat */
    uint32_t reserved[3];
    struct clock_sample samples[248];
    /* behind the first page */
    struct clock_alone moments[16]; /* recent ones of processes of this container, in any order */
    uint64_t others_until_ns;       /* `others` is known up to here; 0: it is not */
    uint32_t others[512]; /* device time of other containers, in the cells that end there; a ring,
                             indexed by cell number */
};

/* END LAYOUT */

#define LEDGER_BYTES   ((UINT64_C(1) << LEDGER_BLOCK_SHIFT) - 1)
#define LEDGER_BLOCK   (UINT64_C(1) << LEDGER_BLOCK_SHIFT)
#define LEDGER_PENDING (UINT64_C(1) << LEDGER_PENDING_SHIFT)

enum region_failure {
    REGION_OK = 0,
    REGION_MISSING,    /* a file does not exist */
    REGION_UNREADABLE, /* it cannot be opened or mapped */
    REGION_WRITABLE,   /* the processes that the quota limits could change it */
    REGION_DAMAGED,    /* short, wrong magic, wrong checksum, or two files that do not belong */
    REGION_VERSION,    /* a layout this shim does not know */
    REGION_CLOSED,     /* the supervisor that gave the quota has ended */
    REGION_FULL,       /* no slot is free */
};

struct region {
    const struct quota_file *quota;                   /* PROT_READ, for as long as the process */
    struct usage_file *usage;                         /* shared; inherited by fork */
    const uint64_t *extra_total;                      /* the quota's, or zeros if it has none */
    struct usage_link *links;                         /* the usage file's, NULL if it has none */
    uint64_t (*idle)[IDLE_SLOTS][2];                  /* likewise */
    uint64_t (*progress)[IDLE_SLOTS][PROGRESS_WORDS]; /* likewise */
    uint32_t (*blocks)[REGION_DEVICES];               /* likewise */
    int slot;                                         /* this process's, -1 while it has none */
    unsigned device_count;          /* devices in the quota; never changes in place */
    uint64_t words[REGION_DEVICES]; /* the slot's words in the ledger, as ledger.c wrote them */
    int words_locked;
    unsigned
        shared_memory_freed; /* this process's exports that it freed and others still have open */
    char quota_path[1024];
    char usage_path[1024];
    char clock_path[1024]; /* of a device, without its index */
};

/* One sentence on what failed, and the remedy, for a line on standard error. */
struct region_reason {
    char text[1500];
};

/* Open and check the two files of the region that belongs to the library at *library_path*:
 * /etc/pyvgpu/quota and /run/pyvgpu/usage if /etc/pyvgpu exists, else those in ../region beside
 * the library's folder, after following symbolic links to the library itself. */
enum region_failure region_open(struct region *region, const char *library_path,
                                struct region_reason *reason);

/* The same for two files by name. *read_only_mount*: quota must be on a read-only mount, else it
 * must not be writable by its mode. */
enum region_failure region_open_files(struct region *region, int read_only_mount,
                                      struct region_reason *reason);

/* Bytes that the process of *slot* holds on *device*, without a block that it merely reserves. */
uint64_t region_held(const struct region *region, unsigned device, unsigned slot);

/* Copy the limits in force; 0 if neither copy is valid. */
int region_limits(const struct quota_file *quota, struct quota_limits *limits);

/* The generation of the limits in force, in two loads; to notice a change. */
static inline uint64_t region_generation(const struct quota_file *quota)
{
    uint64_t first = __atomic_load_n(&quota->limits[0].generation, __ATOMIC_ACQUIRE);
    uint64_t second = __atomic_load_n(&quota->limits[1].generation, __ATOMIC_ACQUIRE);

    return first > second ? first : second;
}

/* QUOTA_* of the limits in force. */
static inline uint32_t region_flags(const struct quota_file *quota)
{
    uint64_t generation;
    uint32_t flags;

    do {
        int newer = __atomic_load_n(&quota->limits[1].generation, __ATOMIC_ACQUIRE) >
                    __atomic_load_n(&quota->limits[0].generation, __ATOMIC_ACQUIRE);

        generation = region_generation(quota);
        flags = __atomic_load_n(&quota->limits[newer].flags, __ATOMIC_ACQUIRE);
    } while (region_generation(quota) != generation);
    return flags;
}

/* Decode the moment in the highest bits of a word, from *shift* on, as read at *now*: it is in
 * WORK_UNIT_NS, and wraps. 0 if it is invalid. */
static inline uint64_t region_moment(uint64_t word, unsigned shift, uint64_t now)
{
    const uint64_t mask = (UINT64_C(1) << (64 - shift)) - 1;
    uint64_t unit = now / WORK_UNIT_NS;
    uint64_t passed = (unit - (word >> shift)) & mask;

    return word && passed <= unit && passed <= mask / 2 ? (unit - passed) * WORK_UNIT_NS : 0;
}

/* FNV-1a. */
uint64_t region_hash(const void *bytes, size_t size);

uint64_t region_checksum(const struct quota_limits *limits);

/* Write a sentence and return *failure*. */
__attribute__((format(printf, 3, 4))) enum region_failure
region_fail(struct region_reason *reason, enum region_failure failure, const char *format, ...);

/* Open a file of a region. Does not block on a FIFO in its place, nor follow a link. */
int region_open_file(const char *path, int access_mode);

#endif
