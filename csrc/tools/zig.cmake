# CMake toolchain that builds wheels for glibc 2.17 and later, on x86-64 or aarch64, with clang and
# the glibc stubs of the PyPI wheel ziglang, independent of the build machine's own toolchain.
#
#   PYVGPU_MACHINE   x86_64 or aarch64
#   PYVGPU_ZIG       the program python-zig of that wheel
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR "${PYVGPU_MACHINE}")
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES PYVGPU_MACHINE PYVGPU_ZIG)
set(CMAKE_C_COMPILER "${PYVGPU_ZIG}" cc -target "${PYVGPU_MACHINE}-linux-gnu.2.17")
