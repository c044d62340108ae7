/* SPDX-License-Identifier: Apache-2.0 */
/* control.h -- the simulated MPS control daemon: parts of the program. */
#ifndef PYVGPU_SIMULATOR_MPS_CONTROL_H
#define PYVGPU_SIMULATOR_MPS_CONTROL_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#include "mps.h"

enum { CONTROL_CONNECTIONS = 1024, NO_SLOT = UINT32_MAX };

enum connection_state {
    CONNECTION_NEW,     /* its first line has not arrived */
    CONNECTION_WAITING, /* a client of another user than the server's */
    CONNECTION_CLIENT,
};

struct connection {
    int fd;
    enum connection_state state;
    pid_t pid;
    uid_t uid;
    uint32_t slot; /* NO_SLOT: not known yet */
    size_t filled;
    char line[MPS_LINE];
};

struct control {
    struct machine *machine;
    bool is_multiuser;
    double percent;      /* default of the next server, */
    uint64_t memory_mib; /* likewise */
    FILE *log;           /* control.log */
    FILE *server_log;
    pid_t server; /* 0: none runs */
    uid_t server_uid;
    uint32_t server_slot;
    uint64_t server_devices;
    double server_percent;
    uint64_t server_memory_mib;
    bool is_ending;
    size_t count;
    struct connection connections[CONTROL_CONNECTIONS];
};

/* Run a server for the user until its end: a process of its own that reports its slot and devices
 * on *report*. */
int server_main(int report);

/* Start a server; false (printed to the log) on failure. End it. */
bool server_start(struct control *control, uid_t uid);
void server_end(struct control *control);

/* Note the server's end, if it has ended. */
void server_poll(struct control *control);

/* The number of clients that are connected. */
size_t control_clients(const struct control *control);

/* Answer a command in words. */
void command_answer(struct control *control, const char *words, FILE *answer);

__attribute__((format(printf, 2, 3))) void control_log(FILE *log, const char *format, ...);

#endif
