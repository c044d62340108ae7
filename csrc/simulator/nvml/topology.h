/* SPDX-License-Identifier: Apache-2.0 */
/* topology.h -- connections between devices, for other files of nvml/. */
#ifndef PYVGPU_SIMULATOR_NVML_TOPOLOGY_H
#define PYVGPU_SIMULATOR_NVML_TOPOLOGY_H

#include "api.h"

/* NVLinks that are up: all of the board's, or none if it is alone of its kind. */
unsigned int topology_active_links(nvmlDevice_t device);
unsigned int topology_nvlink_version(nvmlDevice_t device);

#endif
