/* SPDX-License-Identifier: Apache-2.0 */
/* environment.h -- shows one variable of the environment with another value for a while.
 *
 * Not by setenv, which frees what other threads may be reading: a copy of the environment takes
 * its place and the old one comes back. What other threads set meanwhile is kept. One at a time.
 */
#ifndef PYVGPU_ENVIRONMENT_H
#define PYVGPU_ENVIRONMENT_H

/* Let getenv(*name*) answer *value* from now on; 0 or -ENOMEM. */
int environment_show(const char *name, const char *value);

/* End that, also in a child that was forked in between; harmless if nothing is shown. */
void environment_restore(void);

#endif
