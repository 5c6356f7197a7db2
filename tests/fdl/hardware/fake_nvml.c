/* A libnvidia-ml.so.1 that says what its environment tells it to; see fake_nvml.py.
 *
 * FAKE_NVML_DRIVER   version of the driver: 570.86.10
 * FAKE_NVML_CUDA     as NVML numbers it: 12080
 * FAKE_NVML_FAIL     functions that fail, with the error: "nvmlInitWithFlags=9 nvmlDeviceGetName=999"
 * FAKE_NVML_CARDS    one card per line, its fields separated by `|`:
 *                    name|uuid|PCI address|major|minor|bytes|error of its handle|MIG mode|slices
 *                    MIG mode: -1 not supported, 0 off, 1 on; each slice: name~uuid~bytes, then `^`
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6, INVALID_ARGUMENT = 2 };

#define MOST 16

typedef struct device {
    char name[96], uuid[96], pci[32];
    int major, minor, error, mig, slices;
    unsigned long long memory;
    struct device *parent, *slice[MOST];
} device;

typedef struct { unsigned long long total, free, used; } memory_info;

typedef struct {
    char bus_id_legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
} pci_info;

static device *cards[MOST];
static unsigned count;

static const char *setting(const char *name, const char *otherwise) {
    const char *value = getenv(name);
    return value && *value ? value : otherwise;
}

static int failure(const char *function) {
    const char *at = setting("FAKE_NVML_FAIL", "");
    size_t length = strlen(function);
    while ((at = strstr(at, function))) {
        if (at[length] == '=') return atoi(at + length + 1);
        at += length;
    }
    return OK;
}

#define MAY_FAIL do { int code = failure(__func__); if (code) return code; } while (0)

static char *field(char **rest, const char *separator) {
    char *found = strsep(rest, separator);
    return found ? found : "";
}

static void put(char *target, size_t size, const char *text) {
    snprintf(target, size, "%s", text);
}

static device *read_slice(char *text, device *parent) {
    device *slice = calloc(1, sizeof *slice);
    put(slice->name, sizeof slice->name, field(&text, "~"));
    put(slice->uuid, sizeof slice->uuid, field(&text, "~"));
    slice->memory = strtoull(field(&text, "~"), NULL, 10);
    slice->parent = parent;
    slice->mig = -1;
    return slice;
}

static device *read_card(char *line) {
    device *card = calloc(1, sizeof *card);
    put(card->name, sizeof card->name, field(&line, "|"));
    put(card->uuid, sizeof card->uuid, field(&line, "|"));
    put(card->pci, sizeof card->pci, field(&line, "|"));
    card->major = atoi(field(&line, "|"));
    card->minor = atoi(field(&line, "|"));
    card->memory = strtoull(field(&line, "|"), NULL, 10);
    card->error = atoi(field(&line, "|"));
    card->mig = atoi(field(&line, "|"));
    char *slices = field(&line, "|"), *one;
    while ((one = strsep(&slices, "^")))
        if (*one && card->slices < MOST) card->slice[card->slices++] = read_slice(one, card);
    return card;
}

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    MAY_FAIL;
    count = 0;
    char *text = strdup(setting("FAKE_NVML_CARDS", "")), *line;
    while ((line = strsep(&text, "\n")))
        if (*line && count < MOST) cards[count++] = read_card(line);
    return OK;
}

int nvmlShutdown(void) { MAY_FAIL; return OK; }

int nvmlSystemGetDriverVersion(char *version, unsigned length) {
    MAY_FAIL;
    put(version, length, setting("FAKE_NVML_DRIVER", ""));
    return OK;
}

int nvmlSystemGetCudaDriverVersion(int *version) {
    MAY_FAIL;
    *version = atoi(setting("FAKE_NVML_CUDA", "0"));
    return OK;
}

int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    MAY_FAIL;
    return nvmlSystemGetCudaDriverVersion(version);
}

int nvmlDeviceGetCount_v2(unsigned *number) { MAY_FAIL; *number = count; return OK; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, device **handle) {
    MAY_FAIL;
    if (index >= count) return INVALID_ARGUMENT;
    if (cards[index]->error) return cards[index]->error;
    *handle = cards[index];
    return OK;
}

int nvmlDeviceGetName(device *handle, char *name, unsigned length) {
    MAY_FAIL;
    put(name, length, handle->name);
    return OK;
}

int nvmlDeviceGetUUID(device *handle, char *uuid, unsigned length) {
    MAY_FAIL;
    put(uuid, length, handle->uuid);
    return OK;
}

int nvmlDeviceGetPciInfo_v3(device *handle, pci_info *info) {
    MAY_FAIL;
    memset(info, 0, sizeof *info);
    put(info->bus_id, sizeof info->bus_id, (handle->parent ? handle->parent : handle)->pci);
    return OK;
}

int nvmlDeviceGetMemoryInfo(device *handle, memory_info *info) {
    MAY_FAIL;
    *info = (memory_info){handle->memory, handle->memory, 0};
    return OK;
}

int nvmlDeviceGetCudaComputeCapability(device *handle, int *major, int *minor) {
    MAY_FAIL;
    if (handle->parent) return NOT_SUPPORTED;
    *major = handle->major;
    *minor = handle->minor;
    return OK;
}

int nvmlDeviceGetMigMode(device *handle, unsigned *current, unsigned *pending) {
    MAY_FAIL;
    if (handle->mig < 0) return NOT_SUPPORTED;
    *current = *pending = handle->mig;
    return OK;
}

/* As on a real card: places for slices, most of them empty. */
int nvmlDeviceGetMaxMigDeviceCount(device *handle, unsigned *number) {
    MAY_FAIL;
    *number = handle->mig < 0 ? 0 : 7;
    return OK;
}

int nvmlDeviceGetMigDeviceHandleByIndex(device *handle, unsigned index, device **slice) {
    MAY_FAIL;
    if (index >= (unsigned)handle->slices) return NOT_FOUND;
    *slice = handle->slice[index];
    return OK;
}

const char *nvmlErrorString(int code) {
    static char text[32];
    snprintf(text, sizeof text, "fake error %d", code);
    return text;
}
