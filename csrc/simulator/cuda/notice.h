/* SPDX-License-Identifier: Apache-2.0 */
/* notice.h -- what a program's author should know about this driver, on standard error.
 *
 * Each notice appears once per run, however many processes the run has. Outside of runs, and in a
 * run whose folder is not writable, it appears once per process; children made by fork do not
 * repeat it.
 */
#ifndef PYVGPU_SIMULATOR_CUDA_NOTICE_H
#define PYVGPU_SIMULATOR_CUDA_NOTICE_H

/* The program launches a kernel that is not built in: its results will be wrong. */
void notice_kernel(const char *name);

/* The program asks for a private table of NVIDIA's driver, as the CUDA runtime does. */
void notice_private_table(void);

#endif
