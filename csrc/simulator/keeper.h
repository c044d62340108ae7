/* SPDX-License-Identifier: Apache-2.0 */
/* keeper.h -- locks on the state file that this process has for as long as it lives, or less.
 *
 * Such a lock belongs to an opening of the file that is kept by a mapping. Forked children inherit
 * the mapping, as those of NVIDIA's driver do its open files: the lock goes with the last of them
 * that ends or execs, however it ends.
 *
 * It is kept by a descriptor, too, as the driver has them: a process that dies or execs lets go of
 * descriptors before what it has only mapped. So the memory is free before a shim, which has its
 * slot mapped, says so.
 *
 * Where the machine's law says that children keep nothing (fork_keeps=no), they do not inherit it.
 * A child that is forked before that is so would have the lock too, and keep it: so none is forked
 * meanwhile.
 */
#ifndef PYVGPU_SIMULATOR_KEEPER_H
#define PYVGPU_SIMULATOR_KEEPER_H

#include "machine.h"

struct keeper;

/* The state file once more, to lock something on it, or -1. keeper_end is to be called in any case.
 */
int keeper_begin(const struct machine *machine);

/* Close *fd*. What keeps it, and the locks on it, if that is wanted; NULL if there is no room. */
struct keeper *keeper_end(const struct machine *machine, int fd, bool is_wanted);

/* Let go of the locks; of those that forked children inherited, too. */
void keeper_drop(struct keeper *keeper);

#endif
