/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda/notice.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>

enum { SHOWN_NAME = 60 }; /* characters of a kernel's name; C++ ones can have thousands */

static atomic_bool kernel_noticed;
static atomic_bool private_table_noticed;

void notice_kernel(const char *name)
{
    if (atomic_load_explicit(&kernel_noticed, memory_order_relaxed) ||
        atomic_exchange(&kernel_noticed, true))
        return;
    fprintf(stderr,
            "pyvgpu simulator: kernel '%.*s' takes time and computes nothing: the memory that it "
            "writes stays as it is. Only sim_add, sim_saxpy, sim_copy and sim_fill compute\n",
            SHOWN_NAME, name);
}

void notice_private_table(void)
{
    if (atomic_exchange(&private_table_noticed, true))
        return;
    fprintf(stderr,
            "pyvgpu simulator: the CUDA runtime asks for parts of NVIDIA's driver that are not "
            "public. A program that needs it, such as PyTorch, fails now and needs a GPU; programs "
            "on the driver API, such as numba-cuda, continue\n");
}
