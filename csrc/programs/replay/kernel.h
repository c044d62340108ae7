/* SPDX-License-Identifier: Apache-2.0 */
/* kernel.h -- the kernel that replaces every recorded one, as PTX.
 *
 * The simulated driver recognizes it by its name up to the $, and gives it the number of processors
 * in its second argument, whatever its grid; on a real device each of its blocks takes k_ns.
 */
#ifndef PYVGPU_PROGRAMS_REPLAY_KERNEL_H
#define PYVGPU_PROGRAMS_REPLAY_KERNEL_H

#define KERNEL_HEAD   \
    ".version 7.0\n"  \
    ".target sm_70\n" \
    ".address_size 64\n\n"

#define KERNEL_NAME "sim_hold$%u"

#define KERNEL_ENTRY                                                                    \
    ".visible .entry " KERNEL_NAME "(.param .u64 k%u_ns, .param .u64 k%u_processors)\n" \
    "{\n"                                                                               \
    "    .reg .pred %%p<2>;\n"                                                          \
    "    .reg .b64 %%rd<5>;\n"                                                          \
    "    ld.param.u64 %%rd1, [k%u_ns];\n"                                               \
    "    mov.u64 %%rd2, %%globaltimer;\n"                                               \
    "again:\n"                                                                          \
    "    mov.u64 %%rd3, %%globaltimer;\n"                                               \
    "    sub.u64 %%rd4, %%rd3, %%rd2;\n"                                                \
    "    setp.lt.u64 %%p1, %%rd4, %%rd1;\n"                                             \
    "    @%%p1 bra again;\n"                                                            \
    "    ret;\n"                                                                        \
    "}\n"

#endif
