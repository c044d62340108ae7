/* SPDX-License-Identifier: Apache-2.0 */
/* lock.h -- the locks of the shim, in the order in which a thread may take them.
 *
 * A thread that holds a lock takes only locks that stand below it in enum lock_rank; so no two
 * threads can wait for each other. Builds without NDEBUG check that at each acquisition, and abort
 * with both names where it does not hold. The locks themselves are in mutex.h and spin.h.
 */
#ifndef PYVGPU_CORE_LOCK_H
#define PYVGPU_CORE_LOCK_H

/* Above all others stand those that are held over driver calls, in which the driver may call back
 * into the shim: from LOCK_INIT to LOCK_MARKS. */
#define LOCK_ORDER(RANK)                                                 \
    RANK(LOCK_INIT, "initialisation (init.c)")                           \
    RANK(LOCK_ATTACH, "attachment to the region (shim.c)")               \
    RANK(LOCK_NVML, "NVML (nvml/device.c)")                              \
    RANK(LOCK_PRIMARY, "primary contexts (primary.c)")                   \
    RANK(LOCK_CONTEXT_LIMIT, "limits of contexts (context_limit.c)")     \
    RANK(LOCK_SPARSE_ORDER, "order of mappings (sparse.c)")              \
    RANK(LOCK_MARKS, "marks (mark.c)")                                   \
    RANK(LOCK_GREEN, "green contexts (green.c)")                         \
    RANK(LOCK_CONTEXTS, "registry of contexts (context.c)")              \
    RANK(LOCK_POOLS, "registry of pools (pool.c)")                       \
    RANK(LOCK_GRAPH_STORES, "registry of graph memory (graph_memory.c)") \
    RANK(LOCK_DEFERRED, "deferred frees (deferred_free.c)")              \
    RANK(LOCK_IPC_IMPORTS, "imports by IPC handle (ipc_imports.c)")      \
    RANK(LOCK_EXPORTS, "exported handles (export.c)")                    \
    RANK(LOCK_ORIGINS, "captures (capture.c)")                           \
    RANK(LOCK_GRAPHS, "costs of graphs (graph.c)")                       \
    RANK(LOCK_BLOCK, "a block of small allocations (blocks.c)")          \
    RANK(LOCK_ALLOCATIONS, "a shard of the allocations (allocations.c)") \
    RANK(LOCK_SPARSE, "tiles (sparse.c)")                                \
    RANK(LOCK_MULTICAST, "bindings (multicast.c)")                       \
    RANK(LOCK_POOL, "one pool or store (pool_charge.c)")                 \
    RANK(LOCK_POOL_RANGES, "ranges of pools (pool_ranges.c)")            \
    RANK(LOCK_LEDGER, "this process's words of the ledger (ledger.c)")

enum lock_rank {
#define LOCK_RANK(name, description) name,
    LOCK_ORDER(LOCK_RANK)
#undef LOCK_RANK
        LOCK_RANKS
};

#ifdef NDEBUG
static inline void lock_check(enum lock_rank rank, const void *lock)
{
    (void) rank, (void) lock;
}
static inline void lock_note_taken(enum lock_rank rank, const void *lock)
{
    (void) rank, (void) lock;
}
static inline void lock_note_released(enum lock_rank rank)
{
    (void) rank;
}
#else
/* Abort if this thread holds a lock that does not stand above *rank*, other than *lock* itself. */
void lock_check(enum lock_rank rank, const void *lock);
void lock_note_taken(enum lock_rank rank, const void *lock);
void lock_note_released(enum lock_rank rank);
#endif

/* In a forked child, which holds none. */
void lock_after_fork(void);

#endif
