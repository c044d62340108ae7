/* SPDX-License-Identifier: Apache-2.0 */
/* kinds.h -- workload kinds that are defined outside of work.c. */
#ifndef PYVGPU_BENCH_SHARE_KINDS_H
#define PYVGPU_BENCH_SHARE_KINDS_H

/* held.c: a stream waits, another one has kernels of the program's length. more[0]: kernels behind
 * the wait. */
void work_held_by_host(void);
void work_held_by_event(void);
void work_held_by_value(void);
void work_gated(void);

/* threads.c: several threads, a stream each. */
void work_pair(void);
void work_threads(void);

/* shapes.c: kernels that differ in function, grid, block and shared memory. */
void work_unseen(void);
void work_cycle(void);
void work_many(void);

/* requests.c: a server. more[0]: kernels of a request, more[1]: ns from one to the next, or 0. */
void work_requests(void);

/* brief.c: processes one after the other. more[0]: whether they are killed at half. */
void work_brief(void);
void work_brief_child(void);

#endif
