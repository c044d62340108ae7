/* SPDX-License-Identifier: Apache-2.0 */
/* environment.h -- temporarily overrides one environment variable, safely for concurrent readers.
 *
 * setenv() may free what other threads are reading, so a copy of the environment takes its place
 * until it is restored. Variables that other threads set meanwhile are kept. One override at a
 * time.
 */
#ifndef PYVGPU_CORE_ENVIRONMENT_H
#define PYVGPU_CORE_ENVIRONMENT_H

/* Let getenv(*name*) return *value* from now on; 0 or -ENOMEM. */
int environment_show(const char *name, const char *value);

/* End the override, also in a child that was forked in between; harmless if there is none. */
void environment_restore(void);

void environment_after_fork(void);

#endif
