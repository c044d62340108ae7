/* SPDX-License-Identifier: Apache-2.0 */
/* config.c -- parser of machine.conf: key=value lines, general ones first, then each device's. */
#include "config.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char heading[] = "pyvgpu-machine 1";

/* The keys a device must have; one bit each, by position. */
static const char *const required[] = {
    "uuid",
    "pci",
    "name",
    "memory_bytes",
    "context_bytes",
    "sm_count",
    "compute_capability",
    "sm_clock_khz",
    "memory_clock_khz",
    "memory_bus_bits",
    "memory_bandwidth",
    "pcie_bandwidth",
    "l2_bytes",
    "power_limit_mw",
    "numa_node",
};

enum { REQUIRED = sizeof(required) / sizeof(required[0]) };

struct number_rule {
    const char *key;
    uint64_t *field;
    uint64_t least, most;
    const char *words;
};

struct flag_rule {
    const char *key;
    bool *field;
    const char *words;
};

/* Defaults. */
static const struct law usual_law = {
#define LAW_NUMBER(key, least, most, usual, rule) .key = (usual),
#define LAW_FLAG(key, usual, rule)                .key = (usual),
#include "law.inc"
#undef LAW_NUMBER
#undef LAW_FLAG
};

struct parser {
    struct machine_config *config;
    unsigned int seen[CONFIG_GPUS]; /* of required */
    bool has_mode;
    bool has_kernel_ns;
    int line;
    char *error;
    size_t size;
};

static int fail(struct parser *parser, const char *key, const char *value, const char *rule)
{
    snprintf(parser->error, parser->size, "line %d: %s=%s: %s", parser->line, key, value, rule);
    return -1;
}

static int parse_number(struct parser *parser, const char *key, const char *value, uint64_t limit,
                        uint64_t *number)
{
    char *end;

    errno = 0;
    *number = strtoull(value, &end, 10);
    if (errno || end == value || *end || *value == '-' || *value == '+' || *value == ' ' ||
        *number > limit)
        return fail(parser, key, value, "must be a whole number that fits, such as 132");
    return 0;
}

static int set_u64(struct parser *parser, const char *key, const char *value, uint64_t *field)
{
    return parse_number(parser, key, value, UINT64_MAX, field);
}

static int set_u32(struct parser *parser, const char *key, const char *value, uint32_t *field)
{
    uint64_t number;

    if (parse_number(parser, key, value, UINT32_MAX, &number))
        return -1;
    *field = (uint32_t) number;
    return 0;
}

static int set_text(struct parser *parser, const char *key, const char *value, char *field)
{
    if (!*value || strlen(value) >= CONFIG_TEXT)
        return fail(parser, key, value, "must be 1 to 127 characters");
    strcpy(field, value);
    return 0;
}

static int set_capability(struct parser *parser, const char *value, struct device_config *device)
{
    char end;

    if (sscanf(value, "%" SCNu32 ".%" SCNu32 "%c", &device->capability_major,
               &device->capability_minor, &end) != 2)
        return fail(parser, "compute_capability", value,
                    "must be a compute capability, such as 9.0");
    return 0;
}

/* "mig_profile.1g.10gb=0 19 9984 16 1 7 1 1 1 1 0 0,1,2,3,4,5,6" */
static int set_profile(struct parser *parser, const char *key, const char *value,
                       struct device_config *device)
{
    const char *name = key + strlen("mig_profile.");
    struct mig_profile *profile = &device->mig_profiles[device->mig_profile_count];
    int end = 0;

    if (device->mig_profile_count == CONFIG_PROFILES || !*name ||
        strlen(name) >= sizeof(profile->name))
        return fail(parser, key, value, "a device has at most 8, with short names");
    strcpy(profile->name, name);
    if (sscanf(value,
               "%" SCNu32 " %" SCNu32 " %" SCNu32 " %" SCNu32 " %" SCNu32 " %" SCNu32 " %" SCNu32
               " %" SCNu32 " %" SCNu32 " %" SCNu32 " %" SCNu32 " %n",
               &profile->number, &profile->id, &profile->memory_mib, &profile->sms,
               &profile->slices, &profile->most, &profile->size, &profile->copy_engines,
               &profile->decoders, &profile->jpegs, &profile->ofas, &end) != 11 ||
        !end || !profile->slices || !profile->size || profile->size > CONFIG_STARTS)
        return fail(parser, key, value, "must be eleven numbers and a list of starts");
    for (const char *at = value + end; profile->start_count < CONFIG_STARTS;) {
        char *after;

        profile->starts[profile->start_count++] = (uint32_t) strtoul(at, &after, 10);
        if (after == at || (*after && *after != ','))
            return fail(parser, key, value, "must end with a list of starts, such as 0,4");
        if (!*after)
            break;
        at = after + 1;
    }
    device->mig_profile_count++;
    return 0;
}

static int set_device(struct parser *parser, const char *key, const char *value)
{
    struct device_config *device = &parser->config->devices[parser->config->device_count - 1];
    const struct {
        const char *key;
        uint64_t *field;
    } u64s[] = {
        {"memory_bytes", &device->memory_bytes},
        {"reserved_bytes", &device->reserved_bytes},
        {"context_bytes", &device->context_bytes},
        {"memory_bandwidth", &device->memory_bandwidth},
        {"pcie_bandwidth", &device->pcie_bandwidth},
        {"l2_bytes", &device->l2_bytes},
    };
    const struct {
        const char *key;
        uint32_t *field;
    } u32s[] = {
        {"sm_count", &device->sm_count},
        {"sm_clock_khz", &device->sm_clock_khz},
        {"memory_clock_khz", &device->memory_clock_khz},
        {"memory_bus_bits", &device->memory_bus_bits},
        {"pcie_generation", &device->pcie_generation},
        {"power_limit_mw", &device->power_limit_mw},
        {"numa_node", &device->numa_node},
        {"nvlinks", &device->nvlinks},
    };
    const struct {
        const char *key;
        char *field;
    } texts[] = {
        {"uuid", device->uuid},
        {"name", device->name},
        {"pci", device->pci},
    };

    for (size_t i = 0; i < REQUIRED; i++)
        if (!strcmp(key, required[i]))
            parser->seen[parser->config->device_count - 1] |= 1U << i;
    for (size_t i = 0; i < sizeof(u64s) / sizeof(u64s[0]); i++)
        if (!strcmp(key, u64s[i].key))
            return set_u64(parser, key, value, u64s[i].field);
    for (size_t i = 0; i < sizeof(u32s) / sizeof(u32s[0]); i++)
        if (!strcmp(key, u32s[i].key))
            return set_u32(parser, key, value, u32s[i].field);
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        if (!strcmp(key, texts[i].key))
            return set_text(parser, key, value, texts[i].field);
    if (!strcmp(key, "serial")) {
        snprintf(device->serial, sizeof(device->serial), "%s", value);
        return 0;
    }
    if (!strcmp(key, "compute_capability"))
        return set_capability(parser, value, device);
    if (!strncmp(key, "mig_profile.", strlen("mig_profile.")))
        return set_profile(parser, key, value, device);
    return 0;
}

static int begin_device(struct parser *parser, const char *value)
{
    uint64_t index;

    if (parse_number(parser, "device", value, CONFIG_GPUS - 1, &index))
        return -1;
    if (index != parser->config->device_count)
        return fail(parser, "device", value, "devices count from 0, in order");
    parser->config->device_count++;
    parser->config->devices[index].pcie_generation = 4;
    return 0;
}

static int set_kernel(struct parser *parser, const char *key, const char *value)
{
    struct machine_config *config = parser->config;
    struct kernel_config *kernels =
        realloc(config->kernels, (config->kernel_count + 1) * sizeof(*kernels));

    if (!kernels)
        return fail(parser, key, value, "there is no memory for it");
    config->kernels = kernels;
    kernels += config->kernel_count;
    if (set_text(parser, key, key + strlen("kernel."), kernels->name) ||
        set_u64(parser, key, value, &kernels->ns))
        return -1;
    config->kernel_count++;
    return 0;
}

static int set_number(struct parser *parser, const char *key, const char *value,
                      const struct number_rule *rule)
{
    char *end;

    errno = 0;
    *rule->field = strtoull(value, &end, 10);
    if (*value < '0' || *value > '9' || *end || errno || *rule->field < rule->least ||
        *rule->field > rule->most)
        return fail(parser, key, value, rule->words);
    return 0;
}

static int set_flag(struct parser *parser, const char *key, const char *value,
                    const struct flag_rule *rule)
{
    *rule->field = !strcmp(value, "yes");
    return *rule->field || !strcmp(value, "no") ? 0 : fail(parser, key, value, rule->words);
}

/* A key that is not in the law is left to the other parsers. */
static int set_law(struct parser *parser, const char *key, const char *value)
{
    struct law *law = &parser->config->law;
    const struct number_rule numbers[] = {
#define LAW_NUMBER(key, least, most, usual, rule) {#key, &law->key, least, most, "must be " rule},
#define LAW_FLAG(key, usual, rule)
#include "law.inc"
#undef LAW_NUMBER
#undef LAW_FLAG
    };
    const struct flag_rule flags[] = {
#define LAW_NUMBER(key, least, most, usual, rule)
#define LAW_FLAG(key, usual, rule) {#key, &law->key, "must be " rule},
#include "law.inc"
#undef LAW_NUMBER
#undef LAW_FLAG
    };

    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        if (!strcmp(key, numbers[i].key))
            return set_number(parser, key, value, &numbers[i]);
    for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); i++)
        if (!strcmp(key, flags[i].key))
            return set_flag(parser, key, value, &flags[i]);
    return 0;
}

static int set_general(struct parser *parser, const char *key, const char *value)
{
    struct machine_config *config = parser->config;

    if (!strcmp(key, "driver_release"))
        return set_text(parser, key, value, config->driver_release);
    if (!strcmp(key, "cuda_version"))
        return set_u32(parser, key, value, &config->cuda_version);
    if (!strcmp(key, "kernel_ns")) {
        parser->has_kernel_ns = true;
        return set_u64(parser, key, value, &config->kernel_ns);
    }
    if (!strcmp(key, "mode")) {
        parser->has_mode = true;
        config->free_mode = !strcmp(value, "free");
        if (!config->free_mode && strcmp(value, "timed"))
            return fail(parser, key, value, "must be timed or free");
        return 0;
    }
    if (!strcmp(key, "pools")) {
        config->pools_are_placed = !strcmp(value, "placed");
        if (!config->pools_are_placed && strcmp(value, "flat"))
            return fail(parser, key, value, "must be flat or placed");
        return 0;
    }
    if (!strncmp(key, "kernel.", strlen("kernel.")))
        return set_kernel(parser, key, value);
    return set_law(parser, key, value);
}

static int parse_line(struct parser *parser, char *line)
{
    char *value = strchr(line, '=');

    if (!value || value == line) {
        snprintf(parser->error, parser->size, "line %d: '%s' must be key=value", parser->line,
                 line);
        return -1;
    }
    *value++ = '\0';
    if (!strcmp(line, "device"))
        return begin_device(parser, value);
    if (parser->config->device_count)
        return set_device(parser, line, value);
    return set_general(parser, line, value);
}

static int missing(struct parser *parser, const char *key)
{
    snprintf(parser->error, parser->size, "the key %s is missing", key);
    return -1;
}

static int check_law(struct parser *parser)
{
    const struct machine_config *config = parser->config;
    const char *rule = NULL;

    if (config->law.event_late_ns > config->law.event_ns)
        rule = "event_late_ns must be event_ns at most";
    else if (config->free_mode && config->law.event_ns)
        rule = "event_ns must be 0 where mode is free";
    if (rule)
        snprintf(parser->error, parser->size, "%s", rule);
    return rule ? -1 : 0;
}

static int check(struct parser *parser)
{
    const struct machine_config *config = parser->config;

    if (!config->device_count)
        return missing(parser, "device");
    if (!config->driver_release[0])
        return missing(parser, "driver_release");
    if (!config->cuda_version)
        return missing(parser, "cuda_version");
    if (!parser->has_mode)
        return missing(parser, "mode");
    if (!parser->has_kernel_ns)
        return missing(parser, "kernel_ns");
    if (check_law(parser))
        return -1;
    for (uint32_t device = 0; device < config->device_count; device++) {
        for (size_t i = 0; i < REQUIRED; i++)
            if (!(parser->seen[device] & 1U << i))
                return missing(parser, required[i]);
        if (!config->devices[device].memory_bytes || !config->devices[device].sm_count ||
            !config->devices[device].memory_bandwidth || !config->devices[device].pcie_bandwidth) {
            snprintf(parser->error, parser->size,
                     "device %u: memory_bytes, sm_count and the bandwidths must be above 0",
                     (unsigned int) device);
            return -1;
        }
    }
    return 0;
}

static void count_units(struct machine_config *config)
{
    config->unit_count = config->device_count;
    for (uint32_t device = 0; device < config->device_count; device++)
        if (config->devices[device].mig_profile_count)
            config->unit_count += CONFIG_INSTANCES;
    if (config->unit_count > CONFIG_DEVICES)
        config->unit_count = CONFIG_DEVICES;
    for (uint32_t unit = 0; unit < CONFIG_DEVICES; unit++) {
        config->devices[unit].parent = unit;
        config->devices[unit].account = unit;
    }
}

int config_parse(char *text, struct machine_config *config, char *error, size_t size)
{
    struct parser parser = {.config = config, .error = error, .size = size};
    char *rest = text;
    char *line;

    memset(config, 0, sizeof(*config));
    config->law = usual_law;
    while ((line = strsep(&rest, "\n"))) {
        if (++parser.line == 1) {
            if (strcmp(line, heading)) {
                snprintf(error, size, "its first line must be '%s'", heading);
                return -1;
            }
            continue;
        }
        if (!*line || *line == '#')
            continue;
        if (parse_line(&parser, line))
            return -1;
    }
    if (check(&parser))
        return -1;
    count_units(config);
    return 0;
}
