/* SPDX-License-Identifier: Apache-2.0 */
/* mps.h -- this process as a client of the simulated MPS control daemon (mps/).
 *
 * The daemon's socket `control` is in the folder that CUDA_MPS_PIPE_DIRECTORY names, else in `mps`
 * of the machine's folder. A client sends "client", waits for "server SLOT DEVICES PERCENT MIB" or
 * "error CODE", and sends "slot SLOT" with its own; the connection lasts as long as the process. A
 * connection that sends "command WORDS" instead gets an answer in text, up to the end.
 *
 * From then on the client's slot of the machine names its server's, and errors reach a client
 * through its slot.
 */
#ifndef PYVGPU_SIMULATOR_MPS_H
#define PYVGPU_SIMULATOR_MPS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/un.h>

#include "machine.h"

#define MPS_SOCKET "control"

enum {
    MPS_LINE = 512, /* bytes of a message, with its newline */

    /* The CUresults, for code that does not know CUDA. */
    MPS_CONNECTION_FAILED = 805,
    MPS_RPC_FAILURE = 806,
    MPS_SERVER_NOT_READY = 807,
    MPS_MAX_CLIENTS_REACHED = 808,
    MPS_CLIENT_TERMINATED = 810,
};

/* What the daemon says about its server. */
struct mps_server {
    uint32_t slot;
    uint64_t devices;    /* a bit for each unit of the machine */
    double percent;      /* of the threads: the default of the daemon */
    uint64_t memory_mib; /* most device memory of a client; 0: no limit */
    int connection;      /* -1: there is no daemon, and no MPS */
};

/* Connect to the daemon, if there is one: 0, or a CUresult. Waits while clients of another user
 * have its server. */
int mps_connect(const struct machine *machine, struct mps_server *server);

/* The address of the control socket. False: its path is too long. */
bool mps_address(const struct machine *machine, struct sockaddr_un *address);

/* The slot of this process joins the server. */
void mps_join(struct machine *machine, const struct mps_server *server, uint32_t slot);

/* SMs of a device for a client with the active thread percentage: the variable may only lower what
 * the server says. 0: all. */
uint32_t mps_units(const struct device_config *device, const struct mps_server *server);

/* Bytes of a device that a client may hold, by the variable or the server, whichever is less; 0: no
 * limit. *index*: of the device among the server's. */
uint64_t mps_memory(const struct device_config *device, unsigned int index,
                    const struct mps_server *server);

/* Let all clients of a server, and the server, have the error. Clients keep their first one. */
void mps_fail(struct machine *machine, uint32_t server, int code);

/* Is a daemon gone that this process is connected to? */
bool mps_is_gone(int connection);

#endif
