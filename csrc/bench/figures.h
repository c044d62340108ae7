/* SPDX-License-Identifier: Apache-2.0 */
/* figures.h -- the measurements; main.c has the list. */
#ifndef PYVGPU_BENCH_FIGURES_H
#define PYVGPU_BENCH_FIGURES_H

#include "call.h"

#include <stddef.h>

/* calls.c */
uint64_t time_pair(void);        /* cuMemAlloc_v2 of 4 KiB and its cuMemFree_v2 */
void prepare_live(void);         /* keeps 10,000 allocations live */
uint64_t time_replacement(void); /* cuMemAlloc_v2, and cuMemFree_v2 of any of the 10,000 */
uint64_t time_async_pair(void);  /* cuMemAllocAsync of 4 KiB and its cuMemFreeAsync */
void prepare_mapping(void);
uint64_t time_mapping(void); /* cuMemCreate, cuMemMap, cuMemUnmap, cuMemRelease */
void prepare_refusal(void);
uint64_t time_refusal(void); /* cuMemAlloc_v2 of all memory, while some is in use: fails */

/* pools.c */
void prepare_full_pool(void);
uint64_t time_quarter(void); /* frees a quarter of its pieces on a stream and reallocates them */
uint64_t time_quarter_written(void); /* and then writes to each, and waits */

/* queries.c */
void prepare_memory_info(void);
uint64_t time_memory_info(void); /* cuMemGetInfo_v2 */
void prepare_nvml(void);
uint64_t time_nvml_memory(void); /* nvmlDeviceGetMemoryInfo */
void prepare_process_list(void);
uint64_t time_process_list(void); /* NVML's list of 8 processes */
uint64_t time_lookup(void);       /* cuGetProcAddress_v2, over 400 names */

/* launches.c */
void prepare_launch(void);
void begin_launch(void);    /* in a thread: on a stream of its own */
uint64_t time_launch(void); /* cuLaunchKernel that need not wait */

/* untouched.c */
uint64_t time_untouched(void);       /* cuCtxGetDevice, a call without a hook */
void figure_elsewhere(size_t count); /* number of unhooked functions that are not the driver's */

/* start.c: one process a sample */
void figure_start(size_t count);      /* exec to the return of the first cuCtxCreate */
void figure_init_crowd(size_t count); /* release to the return of cuInit, all at once */
int start_child(const char *pipe, const char *began);

/* footprint.c */
void figure_total(size_t count);     /* total memory by the driver; not a measurement */
void figure_footprint(size_t count); /* resident bytes and threads, with so many allocations */

#endif
