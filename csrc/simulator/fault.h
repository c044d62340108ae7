/* SPDX-License-Identifier: Apache-2.0 */
/* fault.h -- fault injection, configured by the file `faults` in the machine folder.
 *
 *   call NAME NTH CODE   the NTH call of NAME in each process from now on returns CODE; *: each
 *   record               the name of each call is appended to the file `calls` beside it
 *   lost DEVICE          the device is gone
 *   mig DEVICE           NVML reports that the device is in MIG mode
 *   compute_mode DEVICE N  NVML reports this compute mode: 2 prohibits processes
 *   minor DEVICE N         NVML reports this minor number instead of the index
 *   xid DEVICE NUMBER    NVML reports this Xid; with the ids of a GPU instance and a compute
 *                        instance behind it, as one of a MIG device
 *
 * The file is checked at most every 100 ms, and read when its inode, size or time changed. A
 * library without any fault pays one load and one branch a call.
 */
#ifndef PYVGPU_SIMULATOR_FAULT_H
#define PYVGPU_SIMULATOR_FAULT_H

#include <stdbool.h>
#include <stdint.h>

#include "clock.h"
#include "machine.h"

extern bool fault_armed;
extern _Atomic uint64_t fault_next_poll;

/* Is fault_call worth calling? */
static inline bool fault_is_due(void)
{
    return fault_armed ||
           clock_coarse() >= atomic_load_explicit(&fault_next_poll, memory_order_relaxed);
}

/* Read the file now if it changed; called when a library is initialised. */
void fault_poll(struct machine *machine);

/* The code to inject into this call of name, or 0. Checks the file if that is due. */
int fault_call(struct machine *machine, const char *name);

bool fault_is_lost(uint32_t device);
bool fault_is_mig(uint32_t device);
uint32_t fault_compute_mode(uint32_t device);
uint32_t fault_minor(uint32_t device);

/* Around a fork: the child must not inherit a lock that a thread of the parent holds. */
void fault_before_fork(void);
void fault_after_fork(void);

/* A number that changes each time the file is read again. */
uint64_t fault_stamp(void);

/* An instance of UINT32_MAX: none in particular. */
struct fault_xid {
    uint32_t device;
    uint32_t gpu_instance, compute_instance;
    uint64_t number;
};

/* Call found for each xid line, in order. */
void fault_each_xid(void (*found)(void *context, const struct fault_xid *xid), void *context);

#endif
