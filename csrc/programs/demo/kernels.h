/* SPDX-License-Identifier: Apache-2.0 */
/* kernels.h -- the tenant's three kernels, as PTX.
 *
 * Real code for real devices, for a grid of any size. The simulated driver executes no PTX: it
 * recognizes these kernels by their names and does the same.
 *
 *   sim_fill(pointer, value, count)   count words of value
 *   sim_add(out, a, b, count)         out = a + b, count floats
 *   sim_spin(ns)                      spin for this time, by the device's own timer
 */
#ifndef PYVGPU_PROGRAMS_DEMO_KERNELS_H
#define PYVGPU_PROGRAMS_DEMO_KERNELS_H

/* %rd1: this thread's index; %rd2: the number of threads */
#define PTX_THREADS                      \
    "    mov.u32 %r1, %ctaid.x;\n"       \
    "    mov.u32 %r2, %ntid.x;\n"        \
    "    mov.u32 %r3, %tid.x;\n"         \
    "    mov.u32 %r4, %nctaid.x;\n"      \
    "    mul.wide.u32 %rd1, %r1, %r2;\n" \
    "    cvt.u64.u32 %rd2, %r3;\n"       \
    "    add.u64 %rd1, %rd1, %rd2;\n"    \
    "    mul.wide.u32 %rd2, %r4, %r2;\n"

static const char kernels[] =
    ".version 7.0\n"
    ".target sm_70\n"
    ".address_size 64\n"
    "\n"
    ".visible .entry sim_fill(\n"
    "    .param .u64 pointer, .param .u32 value, .param .u64 count)\n"
    "{\n"
    "    .reg .pred %p<2>;\n"
    "    .reg .b32 %r<6>;\n"
    "    .reg .b64 %rd<6>;\n" PTX_THREADS "    ld.param.u64 %rd3, [pointer];\n"
    "    ld.param.u32 %r5, [value];\n"
    "    ld.param.u64 %rd4, [count];\n"
    "    cvta.to.global.u64 %rd3, %rd3;\n"
    "next:\n"
    "    setp.ge.u64 %p1, %rd1, %rd4;\n"
    "    @%p1 bra done;\n"
    "    shl.b64 %rd5, %rd1, 2;\n"
    "    add.u64 %rd5, %rd3, %rd5;\n"
    "    st.global.u32 [%rd5], %r5;\n"
    "    add.u64 %rd1, %rd1, %rd2;\n"
    "    bra next;\n"
    "done:\n"
    "    ret;\n"
    "}\n"
    "\n"
    ".visible .entry sim_add(\n"
    "    .param .u64 out, .param .u64 a, .param .u64 b, .param .u64 count)\n"
    "{\n"
    "    .reg .pred %p<2>;\n"
    "    .reg .b32 %r<5>;\n"
    "    .reg .f32 %f<3>;\n"
    "    .reg .b64 %rd<11>;\n" PTX_THREADS "    ld.param.u64 %rd3, [out];\n"
    "    ld.param.u64 %rd4, [a];\n"
    "    ld.param.u64 %rd5, [b];\n"
    "    ld.param.u64 %rd6, [count];\n"
    "    cvta.to.global.u64 %rd3, %rd3;\n"
    "    cvta.to.global.u64 %rd4, %rd4;\n"
    "    cvta.to.global.u64 %rd5, %rd5;\n"
    "next:\n"
    "    setp.ge.u64 %p1, %rd1, %rd6;\n"
    "    @%p1 bra done;\n"
    "    shl.b64 %rd7, %rd1, 2;\n"
    "    add.u64 %rd8, %rd4, %rd7;\n"
    "    add.u64 %rd9, %rd5, %rd7;\n"
    "    add.u64 %rd10, %rd3, %rd7;\n"
    "    ld.global.f32 %f1, [%rd8];\n"
    "    ld.global.f32 %f2, [%rd9];\n"
    "    add.f32 %f1, %f1, %f2;\n"
    "    st.global.f32 [%rd10], %f1;\n"
    "    add.u64 %rd1, %rd1, %rd2;\n"
    "    bra next;\n"
    "done:\n"
    "    ret;\n"
    "}\n"
    "\n"
    ".visible .entry sim_spin(.param .u64 ns)\n"
    "{\n"
    "    .reg .pred %p<2>;\n"
    "    .reg .b64 %rd<5>;\n"
    "    ld.param.u64 %rd1, [ns];\n"
    "    mov.u64 %rd2, %globaltimer;\n"
    "again:\n"
    "    mov.u64 %rd3, %globaltimer;\n"
    "    sub.u64 %rd4, %rd3, %rd2;\n"
    "    setp.lt.u64 %p1, %rd4, %rd1;\n"
    "    @%p1 bra again;\n"
    "    ret;\n"
    "}\n";

#endif
