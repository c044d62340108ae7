/* SPDX-License-Identifier: Apache-2.0 */
/* tenant.h -- a program that makes random driver calls, from a seed.
 *
 * Each of its threads holds items (its "hand") of all families of device memory. It allocates,
 * touches and frees them at random. It does not check its quota; it checks that its memory keeps
 * its contents, and that the driver fails only for lack of memory.
 */
#ifndef FIRE_TENANT_H
#define FIRE_TENANT_H

#include <cuda.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "board.h"

#define MIB       ((size_t) 1 << 20)
#define PAGE      (2 * MIB)
#define LENGTH(a) (sizeof(a) / sizeof((a)[0]))

enum { HAND = 8, DEVICES = 2 };

struct hand;
struct item;

/* A family of device memory. */
struct family {
    const char *name;
    bool (*take)(struct hand *hand, struct item *item); /* false: no memory, nothing is held */
    void (*give)(struct hand *hand, struct item *item);
    bool needs_context;
    bool goes_with_context; /* freed when its context ends */
};

struct item {
    const struct family *family;
    CUdevice device;
    CUdeviceptr address;
    size_t size;
    uint32_t pattern; /* 0: nothing was written */
    union {
        CUmemGenericAllocationHandle handle;
        CUarray array;
        CUmipmappedArray mipmap;
        CUgraphExec executable;
        CUexternalMemory external;
        CUmemoryPool pool;
        CUgreenCtx green;
    };
    CUmemGenericAllocationHandle second;
    CUgraph graph;
};

/* State of a thread. */
struct hand {
    struct thread_board *board;
    unsigned place, thread;
    uint64_t random;
    CUdevice device;
    CUcontext context; /* current to this thread, or NULL */
    CUstream stream;
    CUmemoryPool pool;
    unsigned count;
    struct item items[HAND];
};

struct tenant {
    struct board *board;
    char *const *arguments;
    unsigned place;
    uint64_t seed;
    uint64_t quota; /* of each device, bytes; 0: not known */
    bool is_brief;
};

extern struct tenant tenant;

/* The families: families.c. */
extern const struct family *const families[];
extern const unsigned family_count;

static inline CUmemLocation place_on(CUdevice device)
{
    return (CUmemLocation) {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
}

/* --- hand.c --- */
uint64_t hand_random(struct hand *hand);
unsigned hand_pick(struct hand *hand, unsigned count);
bool hand_chance(struct hand *hand, unsigned one_in);
size_t hand_size(struct hand *hand);  /* bytes, of any magnitude */
size_t hand_pages(struct hand *hand); /* a few steps of PAGE */
void hand_does(struct hand *hand, const char *what);

/* True for success, false for lack of memory; ends the program with a message for anything else. */
bool hand_got(struct hand *hand, const char *call, CUresult result);
#define GOT(call)  hand_got(hand, #call, call)
#define MUST(call) hand_must(hand, #call, call)
void hand_must(struct hand *hand, const char *call, CUresult result);
_Noreturn void hand_complain(const struct hand *hand, const char *what, int value);

/* Write a pattern to both ends of the item's memory; ends the program if it is gone later. */
void hand_mark(struct hand *hand, struct item *item);
void hand_check(struct hand *hand, const struct item *item);

void hand_take(struct hand *hand);
void hand_give(struct hand *hand, unsigned which);
void hand_give_some(struct hand *hand);
void hand_give_all(struct hand *hand);

/* --- ordered.c --- */
void ordered_end_pool(struct hand *hand);
cuuint64_t ordered_keep(struct hand *hand); /* a pool's threshold: no, some, or all bytes */

/* --- context.c --- */
void context_begin(struct hand *hand);
void context_work(struct hand *hand); /* neither takes nor gives */
void context_rest(struct hand *hand);
void context_search_all(struct hand *hand);

/* --- share.c --- */
void share_begin(void);
void share_receive_all(struct hand *hand);

/* --- child.c --- */
void child_work(struct hand *hand);

#endif
