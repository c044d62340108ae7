/* SPDX-License-Identifier: Apache-2.0 */
/* bare.h -- entry point and system calls for programs without a libc.
 *
 * Such a program runs in other vendors' images, with any libc or none, and has to start fast: it is
 * linked to nothing.
 */
#ifndef PYVGPU_PROGRAMS_BARE_H
#define PYVGPU_PROGRAMS_BARE_H

#include <asm/unistd.h>

/* The program's main(): *stack* holds argc, argv with its NULL, the environment with its NULL. */
__attribute__((noreturn, used)) void bare_main(long *stack);

#if defined(__x86_64__)

__asm__(".globl _start\n_start:\n"
        "xor %ebp, %ebp\n"
        "mov %rsp, %rdi\n"
        "and $-16, %rsp\n"
        "call bare_main\n");

static inline long bare_call(long number, long a, long b, long c, long d)
{
    register long r10 __asm__("r10") = d;
    long result;

    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10)
                     : "rcx", "r11", "memory");
    return result;
}

#elif defined(__aarch64__)

__asm__(".globl _start\n_start:\n"
        "mov x29, #0\n"
        "mov x0, sp\n"
        "bl bare_main\n");

static inline long bare_call(long number, long a, long b, long c, long d)
{
    register long x8 __asm__("x8") = number;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;

    __asm__ volatile("svc #0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3) : "memory");
    return x0;
}

#else
#error "these programs are for x86-64 and aarch64"
#endif

#endif
