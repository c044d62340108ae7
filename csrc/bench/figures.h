/* SPDX-License-Identifier: Apache-2.0 */
/* figures.h -- the measurements; main.c has the list. */
#ifndef PYVGPU_BENCH_FIGURES_H
#define PYVGPU_BENCH_FIGURES_H

#include "call.h"

#include <stddef.h>

/* calls.c */
uint64_t calls_time_pair(void);        /* cuMemAlloc_v2 of 4 KiB and its cuMemFree_v2 */
void calls_prepare_live(void);         /* keeps 10,000 allocations live */
uint64_t calls_time_replacement(void); /* cuMemAlloc_v2, and cuMemFree_v2 of any of the 10,000 */
uint64_t calls_time_async_pair(void);  /* cuMemAllocAsync of 4 KiB and its cuMemFreeAsync */
void calls_prepare_mapping(void);
uint64_t calls_time_mapping(void); /* cuMemCreate, cuMemMap, cuMemUnmap, cuMemRelease */
void calls_prepare_refusal(void);
uint64_t calls_time_refusal(void); /* cuMemAlloc_v2 of all memory, while some is in use: fails */

/* pools.c */
void pools_prepare_full(void);
uint64_t
pools_time_quarter(void); /* frees a quarter of its pieces on a stream and reallocates them */
uint64_t pools_time_quarter_written(void); /* and then writes to each, and waits */

/* queries.c */
void queries_prepare_memory_info(void);
uint64_t queries_time_memory_info(void); /* cuMemGetInfo_v2 */
void queries_prepare_nvml(void);
uint64_t queries_time_nvml_memory(void); /* nvmlDeviceGetMemoryInfo */
void queries_prepare_process_list(void);
uint64_t queries_time_process_list(void); /* NVML's list of 8 processes */
uint64_t queries_time_lookup(void);       /* cuGetProcAddress_v2, over 400 names */

/* launches.c */
void launches_prepare(void);
void launches_begin(void);    /* in a thread: on a stream of its own */
uint64_t launches_time(void); /* cuLaunchKernel that need not wait */

/* untouched.c */
uint64_t untouched_time(void);          /* cuCtxGetDevice, a call without a hook */
void untouched_elsewhere(size_t count); /* number of unhooked functions that are not the driver's */

/* start.c: one process a sample */
void start_figure(size_t count);            /* exec to the return of the first cuCtxCreate */
void start_figure_init_crowd(size_t count); /* release to the return of cuInit, all at once */
int start_child(const char *pipe, const char *began);

/* footprint.c */
void footprint_total(size_t count);  /* total memory by the driver; not a measurement */
void footprint_figure(size_t count); /* resident bytes and threads, with so many allocations */

#endif
