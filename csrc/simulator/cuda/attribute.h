/* SPDX-License-Identifier: Apache-2.0 */
/* attribute.h -- values of CUdevice_attribute. */
#ifndef PYVGPU_SIMULATOR_CUDA_ATTRIBUTE_H
#define PYVGPU_SIMULATOR_CUDA_ATTRIBUTE_H

#include "config.h"

/* Newer clients query attributes that our header does not name; those are 0 up to here. */
enum { ATTRIBUTE_LAST = 400 };

/* The attribute's value; 0 for an unknown one, and for the PCI attributes, which are not here. */
int attribute_value(const struct device_config *config, int attribute);

#endif
