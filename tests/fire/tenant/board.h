/* SPDX-License-Identifier: Apache-2.0 */
/* board.h -- shared memory of the tenants and their keeper (fire.py): one file, mapped by all.
 *
 * fire.py reads and writes it by the same offsets. It survives the death of any process.
 */
#ifndef FIRE_BOARD_H
#define FIRE_BOARD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { PLACES = 16, THREADS = 3, DOING = 24, HANDLE = 64 };

enum order {
    ORDER_WORK,
    ORDER_REST,  /* free all memory, and do nothing more */
    ORDER_CLEAR, /* the same, and receive the messages in flight */
    ORDER_END,
};

/* fire.py lowers and raises the quota in eighths, never below a quarter. */
static inline bool board_is_limit(uint64_t total, uint64_t quota)
{
    return total >= quota / 4 && total <= quota && total % (quota / 8) == 0;
}

/* A handle of memory that any tenant may open. An odd *turn*: it is being written. */
struct letter {
    _Atomic uint32_t turn;
    uint32_t is_there;
    uint64_t size;
    unsigned char handle[HANDLE];
};

struct thread_board {
    _Atomic uint64_t operations;
    _Atomic uint64_t refused;
    _Atomic uint32_t obeyed; /* the last order that was carried out */
    uint32_t reserved;
    char doing[DOING]; /* current operation, to diagnose hangs */
    struct letter letter;
};

struct board {
    _Atomic uint32_t order;
    uint32_t keeper;            /* pid of fire.py */
    _Atomic uint64_t questions; /* queries that the witness has made */
    uint32_t reserved[12];
    struct thread_board threads[PLACES][THREADS];
};

/* Map the board in the folder, which becomes the working directory; ends the program on failure. */
struct board *board_open(const char *folder);

/* Have this process killed when the keeper, which started it, dies. */
void board_die_with_keeper(const struct board *board);

_Static_assert(sizeof(struct letter) == 80, "fire.py reads it");
_Static_assert(sizeof(struct thread_board) == 128, "fire.py reads it");
_Static_assert(sizeof(struct board) == 64 + 128 * PLACES * THREADS, "fire.py reads it");

#endif
