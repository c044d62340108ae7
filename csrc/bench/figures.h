/* SPDX-License-Identifier: Apache-2.0 */
/* figures.h -- what can be measured; each prints one line of JSON. */
#ifndef PYVGPU_BENCH_FIGURES_H
#define PYVGPU_BENCH_FIGURES_H

#include <stddef.h>

/* calls.c: one call, or one pair, a sample */
void figure_pair(size_t count);       /* cuMemAlloc_v2 of 4 KiB and its cuMemFree_v2 */
void figure_pair_live(size_t count);  /* the same while 10,000 others live */
void figure_pair_any(size_t count);   /* cuMemAlloc_v2, and cuMemFree_v2 of any of the 10,000 */
void figure_pair_crowd(size_t count); /* the same in 8 processes at once */
void figure_pair_async(size_t count); /* cuMemAllocAsync of 4 KiB and its cuMemFreeAsync */
void figure_mapping(size_t count);    /* cuMemCreate, cuMemMap, cuMemUnmap, cuMemRelease */
void figure_refusal(size_t count);    /* cuMemAlloc_v2 of all there is, while something is held */

/* queries.c: the same for questions */
void figure_memory_info(size_t count);  /* cuMemGetInfo_v2 */
void figure_nvml_memory(size_t count);  /* nvmlDeviceGetMemoryInfo */
void figure_process_list(size_t count); /* NVML's list of 8 processes */
void figure_lookup(size_t count);       /* cuGetProcAddress_v2, over 400 names */

/* launches.c */
void figure_launch(size_t count);         /* cuLaunchKernel that need not wait */
void figure_launch_threads(size_t count); /* the same in 16 threads, each on its stream */

/* untouched.c */
void figure_untouched(size_t count); /* cuCtxGetDevice, a call that nobody need answer */
void figure_elsewhere(size_t count); /* how many such functions are not the driver's own */

/* start.c: one process a sample */
void figure_start(size_t count);      /* exec to the return of the first cuCtxCreate */
void figure_init_crowd(size_t count); /* release to the return of cuInit, all at once */
int start_child(const char *pipe, const char *began);

/* footprint.c */
void figure_total(size_t count);     /* what the driver says there is; not a measurement */
void figure_footprint(size_t count); /* resident bytes and threads, with so many allocations */

#endif
