/* SPDX-License-Identifier: Apache-2.0 */
/* mig_fit.h -- where an instance fits on a device, by the driver's rules; changes nothing. */
#ifndef PYVGPU_SIMULATOR_MIG_FIT_H
#define PYVGPU_SIMULATOR_MIG_FIT_H

#include "mig.h"

/* Is there room for an instance of the profile at the memory slice *start*, beside those of
 * *state*? */
bool mig_fit_has_room(const struct machine *machine, uint32_t gpu, const struct mig_gpu *state,
                      const struct mig_profile *profile, uint32_t start);

/* The start and the id that the driver would choose for an instance of the profile; -1: no room. */
int mig_fit_start(const struct machine *machine, uint32_t gpu, const struct mig_gpu *state,
                  const struct mig_profile *profile);
int mig_fit_id(const struct machine *machine, uint32_t gpu, const struct mig_gpu *state,
               const struct mig_profile *profile);

/* Number of instances of the profile that could be created beside those of *state*. */
uint32_t mig_fit_capacity(const struct machine *machine, uint32_t gpu, const struct mig_gpu *state,
                          const struct mig_profile *profile);

/* Are these compute slices of a GPU instance there, and in no compute instance? */
bool mig_fit_compute_is_free(const struct mig_gpu_instance *instance, uint32_t start,
                             uint32_t slices);

/* The same of compute instances of so many slices in a GPU instance. */
uint32_t mig_fit_compute_capacity(const struct mig_gpu_instance *instance, uint32_t slices);

/* Does a GPU instance of the profile offer compute instances of so many slices? */
bool mig_fit_compute_is_possible(const struct mig_profile *profile, uint32_t slices);

#endif
