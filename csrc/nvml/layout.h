/* SPDX-License-Identifier: Apache-2.0 */
/* layout.h -- how the answers of NVML's private table are laid out, which differs by release.
 *
 * It was measured from outside, by running releases of nvidia-smi over tables of our own. So it is
 * known by the size of the driver's table, or by the driver's release. Where nobody has measured,
 * the shim lists no processes: what it wrote might lie in the wrong places.
 */
#ifndef PYVGPU_NVML_LAYOUT_H
#define PYVGPU_NVML_LAYOUT_H

#include <stddef.h>

struct table_layout {
    size_t name_at; /* in an entry of the process lists, which ends with the name; 0: unknown */
    size_t load_engines; /* in a record of loads, which ends with one more word; 0: unknown */
};

/* Of a table of *bytes* in a driver of the major release *release*. */
struct table_layout table_layout(size_t bytes, int release);

#endif
