/* SPDX-License-Identifier: Apache-2.0 */
/* test_config.c -- parsing of machine.conf, and error messages for invalid ones. */
#include "config.h"

#include <stdlib.h>

#include "check.h"

#define GENERAL \
    "pyvgpu-machine 1\ndriver_release=999.1\ncuda_version=13000\nmode=free\nkernel_ns=5\n"
#define DEVICE                                                                                \
    "uuid=GPU-0\npci=0000:01:00.0\nname=a b\nmemory_bytes=85520809984\ncontext_bytes=1\n"     \
    "sm_count=132\ncompute_capability=9.0\nsm_clock_khz=1\nmemory_clock_khz=1\n"              \
    "memory_bus_bits=1\nmemory_bandwidth=1\npcie_bandwidth=1\nl2_bytes=1\npower_limit_mw=1\n" \
    "numa_node=0\n"

static struct machine_config config;
static char error[256];

static int parse(const char *text)
{
    char *copy = strdup(text);
    int result = config_parse(copy, &config, error, sizeof(error));

    free(copy);
    return result;
}

static void broken(const char *text, const char *expected)
{
    error[0] = '\0';
    CHECK("it is refused", parse(text) == -1);
    CHECK("with what is wrong", !strcmp(error, expected));
    if (strcmp(error, expected))
        fprintf(stderr, "  said: %s\n", error);
}

int main(void)
{
    CHECK("a whole one is read",
          parse(GENERAL "# words\nkernel.mine=7\nlater=1\ndevice=0\nnew=x\n" DEVICE) == 0);
    CHECK("mode", config.free_mode);
    CHECK_EQUAL("kernel_ns", config.kernel_ns, 5);
    CHECK_EQUAL("named kernels", config.kernel_count, 1);
    CHECK("their names", !strcmp(config.kernels[0].name, "mine"));
    CHECK_EQUAL("their times", config.kernels[0].ns, 7);
    CHECK_EQUAL("devices", config.device_count, 1);
    CHECK_EQUAL("bytes", config.devices[0].memory_bytes, UINT64_C(85520809984));
    CHECK_EQUAL("capability", config.devices[0].capability_major, 9);
    CHECK("a name with a space", !strcmp(config.devices[0].name, "a b"));

    broken("", "its first line must be 'pyvgpu-machine 1'");
    broken("pyvgpu-machine 2\n", "its first line must be 'pyvgpu-machine 1'");
    broken(GENERAL, "the key device is missing");
    broken(GENERAL "device=1\n", "line 6: device=1: devices count from 0, in order");
    broken(GENERAL "device=16\n",
           "line 6: device=16: must be a whole number that fits, such as 132");
    broken(GENERAL "device=0\nsm_count=many\n",
           "line 7: sm_count=many: must be a whole number that fits, such as 132");
    broken(GENERAL "device=0\nsm_count=-1\n",
           "line 7: sm_count=-1: must be a whole number that fits, such as 132");
    broken(GENERAL "device=0\nsm_count=99999999999\n",
           "line 7: sm_count=99999999999: must be a whole number that fits, such as 132");
    broken(GENERAL "device=0\nuuid=GPU-0\n", "the key pci is missing");
    broken(GENERAL "no equals sign\n", "line 6: 'no equals sign' must be key=value");
    broken("pyvgpu-machine 1\nmode=fast\n", "line 2: mode=fast: must be timed or free");
    CHECK_EQUAL("what is not said is as usual", config.law.slice_ns, 1000000);
    CHECK("a law is read",
          parse(GENERAL "fork_keeps=yes\nsmall_bytes=65536\ndevice=0\n" DEVICE) == 0);
    CHECK("its words", config.law.fork_keeps);
    CHECK_EQUAL("its numbers", config.law.small_bytes, 65536);
    broken("pyvgpu-machine 1\nslice_ns=0\n",
           "line 2: slice_ns=0: must be from 1 to 1000000000, such as 1000000");
    broken("pyvgpu-machine 1\nslice_ns=+1\n",
           "line 2: slice_ns=+1: must be from 1 to 1000000000, such as 1000000");
    broken("pyvgpu-machine 1\nfork_keeps=maybe\n", "line 2: fork_keeps=maybe: must be yes or no");
    broken(GENERAL "event_ns=1\ndevice=0\n" DEVICE, "event_ns must be 0 where mode is free");
    broken("pyvgpu-machine 1\npools=x\n", "line 2: pools=x: must be flat or placed");
    broken(GENERAL "device=0\n" DEVICE "sm_count=0\n",
           "device 0: memory_bytes, sm_count and the bandwidths must be above 0");
    broken(GENERAL "device=0\ncompute_capability=nine\n",
           "line 7: compute_capability=nine: must be a compute capability, such as 9.0");
    CHECK("a profile of MIG, with units for instances",
          parse(GENERAL "device=0\n" DEVICE
                        "mig_profile.3g.40gb=2 9 40448 60 3 2 4 3 3 3 0 0,4\n") == 0 &&
              config.unit_count == 1 + CONFIG_INSTANCES && config.device_count == 1);
    CHECK_EQUAL("its id", config.devices[0].mig_profiles[0].id, 9);
    CHECK_EQUAL("its places", config.devices[0].mig_profiles[0].start_count, 2);
    CHECK_EQUAL("the last one", config.devices[0].mig_profiles[0].starts[1], 4);
    broken(GENERAL "device=0\nmig_profile.x=1 2 3\n",
           "line 7: mig_profile.x=1 2 3: must be eleven numbers and a list of starts");
    broken(GENERAL "device=0\nmig_profile.x=2 9 40448 60 3 2 4 3 3 3 0 a\n",
           "line 7: mig_profile.x=2 9 40448 60 3 2 4 3 3 3 0 a: must end with a list of starts, "
           "such as 0,4");
    broken(GENERAL "device=0\nmig_profile.x=2 9 40448 60 3 2 9 3 3 3 0 0\n",
           "line 7: mig_profile.x=2 9 40448 60 3 2 9 3 3 3 0 0: must be eleven numbers and a list "
           "of starts");
    return check_end();
}
