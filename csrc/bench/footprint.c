/* SPDX-License-Identifier: Apache-2.0 */
/* footprint.c -- resident memory and threads of a process that uses the driver.
 *
 * Both libraries are loaded on either side of the comparison, so that the difference between two
 * runs is the layer between the program and the driver: its code, data, mappings and heap use.
 */
#include "figures.h"
#include "library.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

struct footprint {
    uint64_t resident;
    uint64_t library; /* of the file loaded as libcuda.so.1, its zeroed data included */
};

static FILE *open_proc(const char *path)
{
    FILE *file = fopen(path, "re");

    if (file)
        return file;
    perror(path);
    exit(1);
}

static struct stat library_file(void)
{
    struct stat file;
    Dl_info info;

    if (dladdr((void *) library.cuInit_pointer, &info) && stat(info.dli_fname, &file) == 0)
        return file;
    fprintf(stderr, "load: the file of libcuda.so.1 cannot be found\n");
    exit(1);
}

static struct footprint read_mappings(void)
{
    struct footprint footprint = {0};
    struct stat own = library_file();
    FILE *file = open_proc("/proc/self/smaps");
    uint64_t previous_end = 0;
    int is_library = 0;
    char line[4352];

    while (fgets(line, sizeof(line), file)) {
        uint64_t start, end, inode, kilobytes;
        unsigned int major_number, minor_number;

        if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %*s %*s %x:%x %" SCNu64, &start, &end,
                   &major_number, &minor_number, &inode) == 5) {
            int continues = inode == 0 && start == previous_end && !strchr(line, '[');

            is_library = inode == own.st_ino ? makedev(major_number, minor_number) == own.st_dev
                                             : is_library && continues;
            previous_end = end;
        } else if (sscanf(line, "Rss: %" SCNu64, &kilobytes) == 1) {
            footprint.resident += kilobytes * 1024;
            footprint.library += is_library ? kilobytes * 1024 : 0;
        }
    }
    fclose(file);
    return footprint;
}

static int count_threads(void)
{
    FILE *file = open_proc("/proc/self/status");
    char line[256];
    int threads = 0;

    while (fgets(line, sizeof(line), file))
        sscanf(line, "Threads: %d", &threads);
    fclose(file);
    return threads;
}

void footprint_figure(size_t count)
{
    struct footprint footprint;

    library_open_cuda();
    library_open_nvml();
    library_make_context();
    library_check("nvmlInit_v2", (int) CALL(nvmlInit_v2)());
    for (size_t i = 0; i < count; i++) {
        CUdeviceptr address;

        library_check("cuMemAlloc_v2", CALL(cuMemAlloc_v2)(&address, 4096));
    }
    footprint = read_mappings();
    printf("{\"figure\": \"footprint\", \"count\": %zu, \"resident\": %" PRIu64
           ", \"library\": %" PRIu64 ", \"threads\": %d}\n",
           count, footprint.resident, footprint.library, count_threads());
}

void footprint_total(size_t count)
{
    size_t available;
    size_t total;

    (void) count;
    library_open_cuda();
    library_make_context();
    library_check("cuMemGetInfo_v2", CALL(cuMemGetInfo_v2)(&available, &total));
    printf("{\"figure\": \"total\", \"total\": %zu}\n", total);
}
