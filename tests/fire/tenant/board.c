/* SPDX-License-Identifier: Apache-2.0 */
/* board.c -- opens the board, and ties a process's life to the keeper's. */
#include "board.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

struct board *board_open(const char *folder)
{
    struct board *board;
    int file;

    if (chdir(folder) || (file = open("board", O_RDWR | O_CLOEXEC)) < 0) {
        perror(folder);
        exit(3);
    }
    board = mmap(NULL, sizeof(*board), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (board == MAP_FAILED) {
        perror("board");
        exit(3);
    }
    close(file);
    return board;
}

void board_die_with_keeper(const struct board *board)
{
    if (prctl(PR_SET_PDEATHSIG, SIGKILL)) {
        perror("prctl");
        exit(3);
    }
    if (getppid() != (pid_t) board->keeper)
        raise(SIGKILL);
}
