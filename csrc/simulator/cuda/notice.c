/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda/notice.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

#include "machine.h"

enum { SHOWN_NAME = 60 }; /* characters of a kernel's name; C++ ones can have thousands */

static atomic_bool kernel_noticed;
static atomic_bool private_table_noticed;

/* Whether no other process of this run has created the file *mark*. `pyvgpu run` creates a folder
 * for each run, with links to this library and to its machine; the file lies there and is removed
 * with it. */
static bool is_first_of_run(const char *mark)
{
    char path[PATH_MAX];
    int fd;

    if (!machine_beside(MACHINE_LINK, path, sizeof(path)) || access(path, F_OK) ||
        !machine_beside(mark, path, sizeof(path)))
        return true;
    fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return errno != EEXIST;
    close(fd);
    return true;
}

void notice_kernel(const char *name)
{
    if (atomic_load_explicit(&kernel_noticed, memory_order_relaxed) ||
        atomic_exchange(&kernel_noticed, true) || !is_first_of_run("kernel-noticed"))
        return;
    fprintf(stderr,
            "pyvgpu simulator: kernel '%.*s' takes time and computes nothing: the memory that it "
            "writes stays as it is. Only sim_add, sim_saxpy, sim_copy and sim_fill compute\n",
            SHOWN_NAME, name);
}

void notice_private_table(void)
{
    if (atomic_exchange(&private_table_noticed, true) || !is_first_of_run("private-table-noticed"))
        return;
    fprintf(stderr,
            "pyvgpu simulator: the CUDA runtime asks for parts of NVIDIA's driver that are not "
            "public, and fails with cudaErrorSymbolNotFound (500). A program that needs it, such "
            "as PyTorch, fails now and needs a GPU; programs on the driver API, such as "
            "numba-cuda, continue\n");
}
