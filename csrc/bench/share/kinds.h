/* SPDX-License-Identifier: Apache-2.0 */
/* kinds.h -- workload kinds that are defined outside of work.c. */
#ifndef PYVGPU_BENCH_SHARE_KINDS_H
#define PYVGPU_BENCH_SHARE_KINDS_H

/* held.c: a stream waits, another one has kernels of the program's length. more[0]: kernels behind
 * the wait. */
void held_by_host(void);
void held_by_event(void);
void held_by_value(void);
void held_gated(void);

/* threads.c: several threads, a stream each. */
void threads_pair(void);
void threads_many(void);

/* shapes.c: kernels that differ in function, grid, block and shared memory. */
void shapes_unseen(void);
void shapes_cycle(void);
void shapes_many(void);

/* requests.c: a server. more[0]: kernels of a request, more[1]: ns from one to the next, or 0. */
void requests_run(void);

/* brief.c: processes one after the other. more[0]: whether they are killed at half. */
void brief_run(void);
void brief_child(void);

#endif
