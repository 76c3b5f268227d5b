/* A stand-in for libnvidia-ml.so.1: as much of its ABI as sampling needs, by nvml.h. What it answers is in the file that
   $FAKE_NVML names, read anew by each call: lines of "key value", where a key is "0.used" for card 0 and "0.1.used" for
   its MIG instance 1. A call whose key has a number under it fails with that number as its code. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long u64;
typedef struct { u64 total, free, used; } memory_v1;
typedef struct { unsigned version; u64 total, reserved, free, used; } memory_v2;
typedef struct { unsigned pid; u64 used; unsigned gpu_instance, compute_instance; } process;
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } pci;

static int look(const char *key, char *value, size_t size) {
    const char *path = getenv("FAKE_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[1024];
    int found = 0;
    size_t length = strlen(key);
    while (file && !found && fgets(line, sizeof line, file))
        if (!strncmp(line, key, length) && line[length] == ' ') {
            line[strcspn(line, "\n")] = 0;
            snprintf(value, size, "%s", line + length + 1);
            found = 1;
        }
    if (file) fclose(file);
    return found;
}

static u64 number(const char *key, u64 otherwise) {
    char value[1024];
    return look(key, value, sizeof value) ? strtoull(value, NULL, 0) : otherwise;
}

/* A handle is 1 + card, and for an instance (1 + card) * 256 + 1 + instance. */
static const char *of(void *handle, const char *name) {
    static char key[64];
    size_t which = (size_t)handle;
    if (which < 256) snprintf(key, sizeof key, "%zu.%s", which - 1, name);
    else snprintf(key, sizeof key, "%zu.%zu.%s", which / 256 - 1, which % 256 - 1, name);
    return key;
}

static int text(const char *key, char *out, unsigned size) {
    return look(key, out, size) ? 0 : 3;
}

int nvmlInitWithFlags(unsigned flags) { (void)flags; return (int)number("init", 0); }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { return code == 999 ? "Unknown Error" : "Some Error"; }
int nvmlSystemGetDriverVersion(char *out, unsigned size) { return text("driver", out, size); }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = (unsigned)number("count", 0); return (int)number("listing", 0); }
int nvmlDeviceGetHandleByIndex_v2(unsigned at, void **handle) {
    *handle = (void *)(size_t)(at + 1);
    return (int)number(of(*handle, "handle"), 0);
}
int nvmlDeviceGetPciInfo_v3(void *handle, pci *out) {
    memset(out, 0, sizeof *out);
    return text(of(handle, "bus"), out->bus_id, sizeof out->bus_id);
}
int nvmlDeviceGetName(void *handle, char *out, unsigned size) { return text(of(handle, "name"), out, size); }
int nvmlDeviceGetUUID(void *handle, char *out, unsigned size) { return text(of(handle, "uuid"), out, size); }
int nvmlDeviceGetMigMode(void *handle, unsigned *now, unsigned *pending) {
    u64 mode = number(of(handle, "mig"), 99);
    *now = *pending = (unsigned)mode;
    return mode == 99 ? 3 : 0;
}
int nvmlDeviceGetMaxMigDeviceCount(void *handle, unsigned *count) { (void)handle; *count = 7; return 0; }
int nvmlDeviceGetMigDeviceHandleByIndex(void *handle, unsigned at, void **inside) {
    char name[64];
    *inside = (void *)((size_t)handle * 256 + at + 1);
    return look(of(*inside, "uuid"), name, sizeof name) ? 0 : 6;
}
int nvmlDeviceGetMemoryInfo(void *handle, memory_v1 *out) {
    out->total = number(of(handle, "total"), 0);
    out->used = number(of(handle, "used"), 0) + number(of(handle, "reserved"), 0);
    out->free = out->total - out->used;
    return (int)number(of(handle, "memory"), 0);
}
int nvmlDeviceGetMemoryInfo_v2(void *handle, memory_v2 *out) {
    if (out->version != (sizeof *out | 2 << 24)) return 25;
    out->total = number(of(handle, "total"), 0);
    out->reserved = number(of(handle, "reserved"), 0);
    out->used = number(of(handle, "used"), 0);
    out->free = out->total - out->reserved - out->used;
    int code = (int)number(of(handle, "memory"), 0);
    return code ? code : (int)number(of(handle, "memory_v2"), 0);
}

/* "PID:BYTES PID:-", where - is what the driver does not tell. */
static int list(const char *key, const char *failure, unsigned *count, process *out) {
    char value[1024] = "";
    unsigned room = *count, found = 0;
    int code = (int)number(failure, 0);
    if (code) return code;
    look(key, value, sizeof value);
    for (char *word = strtok(value, " "); word; word = strtok(NULL, " "), found++)
        if (out && found < room) {
            char *colon = strchr(word, ':');
            memset(&out[found], 0, sizeof *out);
            out[found].pid = (unsigned)strtoul(word, NULL, 10);
            out[found].used = colon[1] == '-' ? ~0ULL : strtoull(colon + 1, NULL, 10);
        }
    *count = found;
    return found > room || (found && !out) ? 7 : 0;
}

static int processes(void *handle, const char *name, const char *failing, unsigned *count, process *out) {
    char key[64], failure[64];
    snprintf(key, sizeof key, "%s", of(handle, name));
    snprintf(failure, sizeof failure, "%s", of(handle, failing));
    return list(key, failure, count, out);
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *h, unsigned *n, process *p) { return processes(h, "compute", "v3", n, p); }
int nvmlDeviceGetComputeRunningProcesses_v2(void *h, unsigned *n, process *p) { return processes(h, "compute", "v2", n, p); }
int nvmlDeviceGetGraphicsRunningProcesses_v3(void *h, unsigned *n, process *p) { return processes(h, "graphics", "v3", n, p); }
int nvmlDeviceGetGraphicsRunningProcesses_v2(void *h, unsigned *n, process *p) { return processes(h, "graphics", "v2", n, p); }
