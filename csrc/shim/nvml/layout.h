/* SPDX-License-Identifier: Apache-2.0 */
/* layout.h -- record layouts of NVML's private export table, which differ by driver release.
 *
 * They were measured from outside, by running releases of nvidia-smi over tables of our own. So
 * they are known by the size of the driver's table, or by the driver's release. For an unmeasured
 * one the shim lists no processes: it might write fields to the wrong places.
 */
#ifndef PYVGPU_SHIM_NVML_LAYOUT_H
#define PYVGPU_SHIM_NVML_LAYOUT_H

#include <stddef.h>

struct table_layout {
    size_t name_at; /* offset in an entry of the process lists, which ends with it; 0: unknown */
    size_t load_engines; /* engines in a record of loads, which ends with a word; 0: unknown */
};

/* The layout of a table of *bytes* in a driver of the major release *release*. */
struct table_layout layout_of_table(size_t bytes, int release);

#endif
