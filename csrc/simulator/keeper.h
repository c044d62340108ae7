/* SPDX-License-Identifier: Apache-2.0 */
/* keeper.h -- locks on the state file that last until this process ends or drops them.
 *
 * Such a lock belongs to an open file description that a mapping keeps. Forked children inherit the
 * mapping, as NVIDIA's driver lets them inherit its open files: the lock lasts until the last of
 * them ends or execs, however it ends.
 *
 * A descriptor keeps it, too, like the driver's: a process that dies or execs closes its
 * descriptors before the kernel unmaps its memory. So the driver's memory is free before a shim,
 * whose slot is mapped, reports it free.
 *
 * Where the machine's law says that children keep nothing (fork_keeps=no), they do not inherit it.
 * A child that is forked between the opening and MADV_DONTFORK would keep the lock, so forks wait
 * meanwhile.
 */
#ifndef PYVGPU_SIMULATOR_KEEPER_H
#define PYVGPU_SIMULATOR_KEEPER_H

#include "machine.h"

struct keeper;

/* Open the state file again, to lock a byte of it; -1 on failure. Call keeper_end in any case. */
int keeper_begin(const struct machine *machine);

/* Close *fd*; if is_wanted, return a keeper of its locks. NULL: no memory. */
struct keeper *keeper_end(const struct machine *machine, int fd, bool is_wanted);

/* Release the locks, also for forked children that inherited them. */
void keeper_drop(struct keeper *keeper);

#endif
