/*
 * A stand-in for NVIDIA's libnvidia-ml.so.1, scripted by a text file that may change at any time.
 *
 * The file is named by FAKE_NVML_STATE and holds one fact a line:
 *     count N                 GPUs that there are
 *     init_error N            nvmlInit returns N
 *     event SEQ GPU TYPE DATA an event, delivered once, in order of SEQ
 *     GPU KEY VALUE           a value of one GPU; a KEY that is absent is not supported by that GPU
 * `GPU lost 1` makes every call about that GPU fail with "GPU is lost", and so does any handle of it from then on until
 * nvmlInit is called again, whatever the script says later. `GPU error N` makes every call about it return N.
 *     GPU mig_at_PLACE N      GPU instance number N is MIG device number PLACE of the GPU
 *     GPU mig_N_KEY VALUE     a value of that instance; `mig_N_made` goes into its UUID
 *     GPU gpm_clock T         time in the GPU's performance counters, and gpm_M the counter of metric M by then; a
 *                             metric is what its counter grew by between two samples over what the clock did
 * Signatures and numbers are those of the public NVML API reference. With -DOLD_DRIVER the functions that came with
 * driver 510 and later are left out.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MAX_GPUS 16
#define MAX_KEYS 400
#define MAX_EVENTS 4096
#define MAX_MIGS 8

enum {
    OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, TIMEOUT = 10,
    LOST = 15, NO_DATA = 21, WRONG_VERSION = 25
};

typedef unsigned long long u64;
typedef struct { char name[40]; u64 value; } key_t_;
/* A GPU, or with `of` a MIG device: instance number `instance` of that GPU. */
typedef struct gpu { int index, keys, dead; struct gpu *of; unsigned instance; key_t_ key[MAX_KEYS]; } gpu_t;
typedef struct { u64 seq; int gpu; u64 type, data; } event_t;
typedef gpu_t *device_t;

static gpu_t gpus[MAX_GPUS], migs[MAX_GPUS][MAX_MIGS];
static event_t events[MAX_EVENTS];
static int event_count, gpu_count, init_error, ready;
static struct stat seen;

static void reload(void) {
    const char *path = getenv("FAKE_NVML_STATE");
    struct stat now;
    if (!path || stat(path, &now)) return;
    if (now.st_ino == seen.st_ino && now.st_size == seen.st_size && now.st_mtim.tv_sec == seen.st_mtim.tv_sec &&
        now.st_mtim.tv_nsec == seen.st_mtim.tv_nsec) return;
    FILE *file = fopen(path, "r");
    if (!file) return;
    seen = now;
    gpu_count = init_error = event_count = 0;
    for (int i = 0; i < MAX_GPUS; i++) { gpus[i].index = i; gpus[i].keys = 0; }
    char line[256], name[40];
    while (fgets(line, sizeof line, file)) {
        u64 value;
        int gpu;
        event_t e;
        if (sscanf(line, "count %d", &gpu_count) == 1 || sscanf(line, "init_error %d", &init_error) == 1) continue;
        if (sscanf(line, "event %llu %d %llu %llu", &e.seq, &e.gpu, &e.type, &e.data) == 4) {
            if (event_count < MAX_EVENTS) events[event_count++] = e;
        } else if (sscanf(line, "%d %39s %llu", &gpu, name, &value) == 3 && gpu >= 0 && gpu < MAX_GPUS) {
            gpu_t *g = &gpus[gpu];
            if (g->keys < MAX_KEYS) {
                strcpy(g->key[g->keys].name, name);
                g->key[g->keys++].value = value;
            }
        }
    }
    fclose(file);
}

static int find(device_t d, const char *name, u64 *value) {
    for (int i = 0; i < d->keys; i++)
        if (!strcmp(d->key[i].name, name)) { *value = d->key[i].value; return 1; }
    return 0;
}

static int get(device_t d, const char *name, u64 *value) {
    char key[64];
    if (!ready) return UNINITIALIZED;
    reload();
    if (d->of) {
        u64 made;
        snprintf(key, sizeof key, "mig_%u_made", d->instance);
        if (!find(d->of, key, &made)) return NOT_FOUND; /* destroyed meanwhile */
        snprintf(key, sizeof key, "mig_%u_%.30s", d->instance, name);
        return get(d->of, key, value);
    }
    u64 error;
    if (find(d, "lost", &error) && error) d->dead = 1;
    if (d->dead) return LOST;
    if (find(d, "error", &error)) return (int)error;
    snprintf(key, sizeof key, "%.30s!", name);
    if (find(d, key, &error)) return (int)error;
    return find(d, name, value) ? OK : NOT_SUPPORTED;
}

static int get32(device_t d, const char *name, unsigned *out) {
    u64 value;
    int code = get(d, name, &value);
    if (code == OK) *out = (unsigned)value;
    return code;
}

static int numbered(device_t d, const char *format, unsigned a, unsigned b, u64 *out) {
    char name[40];
    snprintf(name, sizeof name, format, a, b);
    return get(d, name, out);
}

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    reload();
    ready = !init_error;
    for (int i = 0; ready && i < MAX_GPUS; i++) gpus[i].dead = 0;
    return init_error;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { if (!ready) return UNINITIALIZED; ready = 0; return OK; }
const char *nvmlErrorString(int code) { static char text[32]; snprintf(text, sizeof text, "code %d", code); return text; }
int nvmlDeviceGetCount_v2(unsigned *count) { reload(); *count = gpu_count; return ready ? OK : UNINITIALIZED; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t *device) {
    reload();
    if ((int)index >= gpu_count) return INVALID;
    u64 lost;
    if (find(&gpus[index], "lost_at_start", &lost) && lost) return LOST;
    *device = &gpus[index];
    return OK;
}

int nvmlDeviceGetName(device_t d, char *name, unsigned size) {
    u64 model = 200; /* of the line */
    if (d->of) {
        snprintf(name, size, "NVIDIA H%llu MIG 1g.18gb", model);
        return OK;
    }
    int code = get(d, "model", &model);
    if (!code || code == NOT_SUPPORTED) snprintf(name, size, "NVIDIA H%llu", model);
    return code == NOT_SUPPORTED ? OK : code;
}

int nvmlDeviceGetUUID(device_t d, char *uuid, unsigned size) {
    if (d->of) {
        u64 made;
        int code = get(d, "made", &made);
        if (!code) snprintf(uuid, size, "MIG-%08x-%04x-4000-8000-%012llx", d->of->index, d->instance, made);
        return code;
    }
    snprintf(uuid, size, "GPU-%08x-0000-4000-8000-%012x", 0xfa4e0000u + d->index, d->index);
    return OK;
}

int nvmlDeviceGetPciInfo_v3(device_t d, void *info) {
    struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } *pci = info;
    memset(pci, 0, sizeof *pci);
    pci->bus = 0x18 + d->index;
    snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", pci->bus);
    return OK;
}

int nvmlDeviceGetUtilizationRates(device_t d, unsigned *rates) {
    int code = get32(d, "util_gpu", &rates[0]);
    return code ? code : get32(d, "util_mem", &rates[1]);
}
int nvmlDeviceGetEncoderUtilization(device_t d, unsigned *u, unsigned *p) { *p = 0; return get32(d, "encoder", u); }
int nvmlDeviceGetDecoderUtilization(device_t d, unsigned *u, unsigned *p) { *p = 0; return get32(d, "decoder", u); }
int nvmlDeviceGetClockInfo(device_t d, unsigned type, unsigned *mhz) {
    u64 v = 0; int code = numbered(d, "clock_%u", type, 0, &v); *mhz = (unsigned)v; return code;
}
int nvmlDeviceGetMaxClockInfo(device_t d, unsigned type, unsigned *mhz) {
    u64 v = 0; int code = numbered(d, "clock_max_%u", type, 0, &v); *mhz = (unsigned)v; return code;
}
#ifndef OLD_DRIVER
int nvmlDeviceGetCurrentClocksEventReasons(device_t d, u64 *mask) { return get(d, "event_reasons", mask); }
int nvmlDeviceGetMemoryInfo_v2(device_t d, void *info) {
    struct { unsigned version; u64 total, reserved, free, used; } *m = info;
    int code = get(d, "mem_total", &m->total);
    if (!code) code = get(d, "mem_reserved", &m->reserved);
    if (!code) code = get(d, "mem_free", &m->free);
    return code ? code : get(d, "mem_used", &m->used);
}
#endif
int nvmlDeviceGetCurrentClocksThrottleReasons(device_t d, u64 *mask) { return get(d, "event_reasons", mask); }
int nvmlDeviceGetMemoryInfo(device_t d, u64 *m) {
    int code = get(d, "mem_total", &m[0]);
    if (!code) code = get(d, "mem_free", &m[1]);
    return code ? code : get(d, "mem_used", &m[2]);
}
int nvmlDeviceGetBAR1MemoryInfo(device_t d, u64 *m) { m[0] = m[1] = 0; return get(d, "bar1_used", &m[2]); }
int nvmlDeviceGetTemperature(device_t d, unsigned sensor, unsigned *t) { (void)sensor; return get32(d, "temperature", t); }
int nvmlDeviceGetTemperatureThreshold(device_t d, unsigned kind, unsigned *t) {
    u64 v = 0; int code = numbered(d, "threshold_%u", kind, 0, &v); *t = (unsigned)v; return code;
}
int nvmlDeviceGetFanSpeed(device_t d, unsigned *percent) { return get32(d, "fan", percent); }
int nvmlDeviceGetPowerUsage(device_t d, unsigned *mw) { return get32(d, "power_mw", mw); }
int nvmlDeviceGetEnforcedPowerLimit(device_t d, unsigned *mw) { return get32(d, "power_limit_mw", mw); }
int nvmlDeviceGetTotalEnergyConsumption(device_t d, u64 *mj) { return get(d, "energy_mj", mj); }
int nvmlDeviceGetPerformanceState(device_t d, unsigned *state) { return get32(d, "pstate", state); }
int nvmlDeviceGetPcieReplayCounter(device_t d, unsigned *n) { return get32(d, "pcie_replay", n); }
int nvmlDeviceGetPcieThroughput(device_t d, unsigned way, unsigned *kb) {
    u64 v = 0; int code = numbered(d, "pcie_kb_%u", way, 0, &v); *kb = (unsigned)v; return code;
}
int nvmlDeviceGetCurrPcieLinkGeneration(device_t d, unsigned *n) { return get32(d, "pcie_gen", n); }
int nvmlDeviceGetMaxPcieLinkGeneration(device_t d, unsigned *n) { return get32(d, "pcie_gen_max", n); }
int nvmlDeviceGetCurrPcieLinkWidth(device_t d, unsigned *n) { return get32(d, "pcie_width", n); }
int nvmlDeviceGetMaxPcieLinkWidth(device_t d, unsigned *n) { return get32(d, "pcie_width_max", n); }
int nvmlDeviceGetTotalEccErrors(device_t d, unsigned error, unsigned counter, u64 *n) { return numbered(d, "ecc_%u_%u", error, counter, n); }

int nvmlDeviceGetViolationStatus(device_t d, unsigned policy, u64 *time) {
    time[0] = 0;
    return numbered(d, "violation_%u_ns", policy, 0, &time[1]);
}

int nvmlDeviceGetRetiredPages(device_t d, unsigned cause, unsigned *count, u64 *pages) {
    u64 n;
    int code = numbered(d, "retired_%u", cause, 0, &n);
    if (code) return code;
    unsigned room = pages ? *count : 0;
    *count = (unsigned)n;
    if (room < n) return INSUFFICIENT_SIZE;
    for (unsigned i = 0; pages && i < n; i++) pages[i] = i;
    return OK;
}
int nvmlDeviceGetRetiredPagesPendingStatus(device_t d, unsigned *pending) { return get32(d, "retired_pending", pending); }

int nvmlDeviceGetRemappedRows(device_t d, unsigned *corr, unsigned *unc, unsigned *pending, unsigned *failure) {
    int code = get32(d, "remapped_corr", corr);
    if (!code) code = get32(d, "remapped_unc", unc);
    if (!code) code = get32(d, "remapped_pending", pending);
    return code ? code : get32(d, "remapped_failure", failure);
}

int nvmlDeviceGetNvLinkState(device_t d, unsigned link, unsigned *active) {
    u64 links, down = 0;
    int code = get(d, "nvlinks", &links);
    if (code) return code;
    if (link >= links) return INVALID;
    find(d, "nvlinks_down", &down);
    *active = link >= down;
    return OK;
}

typedef struct { unsigned field, scope; long long time, latency; unsigned type; int code; u64 value; } field_t;

int nvmlDeviceGetFieldValues(device_t d, int count, field_t *values) {
    for (int i = 0; i < count; i++) {
        values[i].type = 3; /* unsigned long long */
        values[i].code = numbered(d, "field_%u", values[i].field, 0, &values[i].value);
    }
    return OK;
}

typedef struct { unsigned pid; u64 memory; unsigned gpu_instance, compute_instance; } process_t;

#ifdef OLD_DRIVER
#define nvmlDeviceGetComputeRunningProcesses_v3 nvmlDeviceGetComputeRunningProcesses_v2
#endif
int nvmlDeviceGetComputeRunningProcesses_v3(device_t d, unsigned *count, process_t *list) {
    u64 pid;
    unsigned n = 0, room = list ? *count : 0;
    int code = get(d, "processes", &pid);
    if (code) return code;
    while (numbered(d, "pid_%u", n, 0, &pid) == OK) {
        unsigned instance = pid >> 32 ? (unsigned)(pid >> 32) - 1 : 0xffffffff; /* of MIG, as in events */
        if (n < room) list[n] = (process_t){(unsigned)pid, 1 << 20, instance, instance};
        n++;
    }
    *count = n;
    return n > room ? INSUFFICIENT_SIZE : OK;
}

/* An event set: a GPU that is lost makes the whole set answer so once its own last words are through. */
typedef struct { u64 types[MAX_GPUS], delivered; } set_t;
static int sets_made, samples_made;
int fake_nvml_unfreed(void) { return sets_made + samples_made; }

int nvmlEventSetCreate(set_t **set) {
    if (!ready) return UNINITIALIZED;
    *set = calloc(1, sizeof **set);
    sets_made++;
    for (int i = 0; i < event_count; i++) (*set)->delivered = events[i].seq; /* what was before is nobody's */
    return OK;
}
int nvmlEventSetFree(set_t *set) { free(set); sets_made--; return OK; }
int nvmlDeviceGetSupportedEventTypes(device_t d, u64 *types) { return get(d, "event_types", types); }
int nvmlDeviceRegisterEvents(device_t d, u64 types, set_t *set) {
    u64 known;
    int code = get(d, "event_types", &known);
    if (!code) set->types[d->index] |= types;
    return code;
}

int nvmlEventSetWait_v2(set_t *set, void *out, unsigned timeout_ms) {
    struct { device_t device; u64 type, data; unsigned gpu_instance, compute_instance; } *event = out;
    int lost = 0;
    (void)timeout_ms;
    if (!ready) return UNINITIALIZED;
    reload();
    for (int i = 0; i < MAX_GPUS; i++) {
        u64 gone;
        if (set->types[i] && find(&gpus[i], "lost", &gone) && gone) gpus[i].dead = 1;
        lost |= set->types[i] && gpus[i].dead;
    }
    for (int i = 0; i < event_count; i++) {
        event_t *e = &events[i];
        if (e->seq <= set->delivered || (lost && !gpus[e->gpu].dead)) continue;
        set->delivered = e->seq;
        if (!(set->types[e->gpu] & e->type)) continue;
        event->device = &gpus[e->gpu];
        event->type = e->type;
        event->data = e->data & 0xffffffff;
        event->gpu_instance = e->data >> 32 ? (unsigned)(e->data >> 32) - 1 : 0xffffffff;
        event->compute_instance = 0xffffffff;
        return OK;
    }
    return lost ? LOST : TIMEOUT;
}

int nvmlDeviceGetMigMode(device_t d, unsigned *now, unsigned *pending) {
    int code = get32(d, "mig_mode", now);
    *pending = *now;
    return code;
}
int nvmlDeviceGetMaxMigDeviceCount(device_t d, unsigned *count) { *count = MAX_MIGS - 1; (void)d; return OK; }
int nvmlDeviceGetMigDeviceHandleByIndex(device_t d, unsigned place, device_t *mig) {
    u64 number;
    int code = numbered(d, "mig_at_%u", place, 0, &number);
    if (code) return code == NOT_SUPPORTED ? NOT_FOUND : code;
    *mig = &migs[d->index][place];
    **mig = (gpu_t){.of = d, .instance = (unsigned)number};
    return OK;
}
int nvmlDeviceGetGpuInstanceId(device_t d, unsigned *id) { *id = d->instance; return d->of ? OK : NOT_SUPPORTED; }

#define GPM_METRICS 400
typedef struct { device_t of; unsigned instance; u64 clock, counter[GPM_METRICS]; char known[GPM_METRICS]; } sample_t;

int nvmlGpmQueryDeviceSupport(device_t d, unsigned *support) {
    u64 gpm = 0;
    int code = support[0] == 1 ? get(d, "gpm", &gpm) : WRONG_VERSION;
    support[1] = (unsigned)gpm;
    return code == NOT_SUPPORTED ? OK : code;
}
int nvmlGpmSampleAlloc(sample_t **sample) { *sample = calloc(1, sizeof **sample); samples_made++; return OK; }
int nvmlGpmSampleFree(sample_t *sample) { free(sample); samples_made--; return OK; }

static int sample(device_t d, const char *prefix, unsigned instance, sample_t *out) {
    char name[40];
    snprintf(name, sizeof name, "%sgpm_clock", prefix);
    int code = get(d, name, &out->clock);
    if (code) return code;
    out->of = d;
    out->instance = instance;
    memset(out->known, 0, sizeof out->known);
    size_t begins = (size_t)snprintf(name, sizeof name, "%sgpm_", prefix);
    for (int i = 0; i < d->keys; i++) {
        unsigned metric;
        if (strncmp(d->key[i].name, name, begins) || sscanf(d->key[i].name + begins, "%u", &metric) != 1) continue;
        if (metric >= GPM_METRICS) continue;
        out->known[metric] = 1;
        out->counter[metric] = d->key[i].value;
    }
    return OK;
}
int nvmlGpmSampleGet(device_t d, sample_t *out) { return sample(d, "", 0xffffffff, out); }
int nvmlGpmMigSampleGet(device_t d, unsigned instance, sample_t *out) {
    char prefix[40];
    snprintf(prefix, sizeof prefix, "mig_%u_", instance);
    return sample(d, prefix, instance, out);
}

typedef struct { unsigned id; int code; double value; const char *name[3]; } metric_t;
int nvmlGpmMetricsGet(void *request) {
    struct { unsigned version, count; sample_t *one, *two; metric_t metric[]; } *get = request;
    if (get->version != 1) return WRONG_VERSION;
    sample_t *a = get->one, *b = get->two;
    if (!a->of || a->of != b->of || a->instance != b->instance) return INVALID;
    for (unsigned i = 0; i < get->count; i++) {
        metric_t *m = &get->metric[i];
        int known = m->id < GPM_METRICS && a->known[m->id] && b->known[m->id];
        m->code = !known ? NOT_SUPPORTED : b->clock > a->clock ? OK : NO_DATA;
        if (m->code) continue;
        m->value = ((double)b->counter[m->id] - (double)a->counter[m->id]) / (double)(b->clock - a->clock);
        if (m->id < 20) m->value *= 100;
    }
    return OK;
}

/* nvmlGpuFabricInfo_t, and from the second version on a number of the version before it and health behind it. */
typedef struct { unsigned char cluster[16]; int status; unsigned clique, state; } fabric_t;
int nvmlDeviceGetGpuFabricInfo(device_t d, fabric_t *out) {
    u64 state, status = 0;
    int code = get(d, "fabric_state", &state);
    if (code) return code;
    find(d, "fabric_status", &status);
    *out = (fabric_t){.status = (int)status, .clique = 4026, .state = (unsigned)state};
    return OK;
}
#ifndef OLD_DRIVER
int nvmlDeviceGetGpuFabricInfoV(device_t d, void *out) {
    struct { unsigned version; fabric_t fabric; unsigned mask; unsigned char summary; } *info = out;
    u64 newest = 3, mask = 0, summary = 0;
    find(d, "fabric_version", &newest);
    if (info->version >> 24 > newest) {
        u64 refusal = WRONG_VERSION;
        find(d, "fabric_refusal", &refusal);
        return (int)refusal;
    }
    int code = nvmlDeviceGetGpuFabricInfo(d, &info->fabric);
    if (code) return code;
    find(d, "fabric_health", &mask);
    find(d, "fabric_summary", &summary);
    info->mask = (unsigned)mask;
    if (info->version >> 24 > 2) info->summary = (unsigned char)summary;
    return OK;
}
#endif
