/* SPDX-License-Identifier: Apache-2.0 */
/* attribute.h -- what a device can do, by the numbers of CUdevice_attribute. */
#ifndef PYVGPU_SIMULATOR_CUDA_ATTRIBUTE_H
#define PYVGPU_SIMULATOR_CUDA_ATTRIBUTE_H

#include "config.h"

/* Newer clients ask for attributes that our header does not name; those are 0 up to here. */
enum { ATTRIBUTE_LAST = 400 };

/* The attribute's value; 0 for one that is not known. PCI numbers are not known here. */
int attribute_value(const struct device_config *config, int attribute);

#endif
