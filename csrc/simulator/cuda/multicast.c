/* SPDX-License-Identifier: Apache-2.0 */
/* multicast.c -- multicast objects. */
#include "cuda/physical.h"

void multicast_free(struct multicast *multicast)
{
    (void) multicast;
}
