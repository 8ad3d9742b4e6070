/* A throwaway recorder behind NCCL's profiler interface (ncclProfiler_v4, _v5, _v6).
 *
 * Licence: Apache-2.0, the trainwarden project. No NVIDIA header is used: the structures below are our own, their
 * offsets were checked against profiler_v4.h, _v5.h (NCCL 2.28.9) and _v6.h (2.30.7) with `offsetof` on x86-64.
 *
 *   gcc -O2 -Wall -Wextra -shared -fPIC -pthread -DONLY=5 nccl_recorder.c -o libnccl-profiler-twrec5.so
 *
 * ONLY=4, 5 or 6 exports that interface alone (NCCL takes the newest symbol it finds); without it all three.
 * Environment, read at the first init:
 *   TWREC_DIR   folder for rank-R-PID.twrec (default /tmp)
 *   TWREC_MASK  event mask (default 2|4|64|256|512|1024: Coll, P2p, KernelCh and the API events)
 *   TWREC_ROWS  records kept (default 200,000; later ones are counted and dropped)
 *   TWREC_NULL  1: give NULL handles, as a plug-in that only counts would
 *   TWREC_FAIL  1: init returns an error (what does NCCL do then?)
 *   TWREC_CLEAR 1: clear KernelCh (64) in the first API callback that says graphCaptured
 * From Python, `ctypes.CDLL(path)` gives the same copy: twrec_mask(int), twrec_step(int), twrec_count().
 *
 * Every callback is one record of 88 bytes in a shared mapping, so that SIGKILL loses nothing. Handles are row numbers
 * + 1, never pointers; nothing is freed, no lock is taken, every function returns success.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

typedef int result_t; /* ncclResult_t: 0 is success */
typedef void (*logger_t)(int level, unsigned long flags, const char *file, int line, const char *format, ...);

enum { GROUP = 1, COLL = 2, P2P = 4, PROXY_OP = 8, PROXY_STEP = 16, PROXY_CTRL = 32, KERNEL_CH = 64, NET_PLUGIN = 128,
       GROUP_API = 256, COLL_API = 512, P2P_API = 1024, KERNEL_LAUNCH = 2048, CE_COLL = 4096, CE_SYNC = 8192,
       CE_BATCH = 16384 };
enum { INIT = 1, START = 2, STOP = 3, STATE = 4, FINALIZE = 5 };
enum { MAX_NAMES = 64, NAME_BYTES = 24, MAX_COMMS = 64, HEADER_BYTES = 8192 };

#pragma pack(push, 1)
struct row {
    uint64_t serial;   /* row number + 1, written last: 0 is torn */
    uint64_t begin_ns; /* CLOCK_MONOTONIC at entry */
    uint32_t cost_ns;  /* our own time in this callback, without the call itself */
    uint32_t tid;
    uint8_t kind;      /* INIT .. FINALIZE */
    uint8_t comm;      /* place in the table of communicators + 1; 0 is unknown */
    uint16_t state;    /* of STATE */
    uint32_t type;     /* event type bit; of STOP and STATE that of the handle's row, 0 if it cannot be known */
    uint64_t handle;   /* START: the one given out; STOP, STATE: the one got */
    uint64_t parent;
    int32_t rank;
    int32_t step;      /* what twrec_step was given last */
    uint64_t field[4]; /* see README: by type */
};
#pragma pack(pop)
_Static_assert(sizeof(struct row) == 88, "a row is 88 bytes");

struct comm {
    uint64_t id;
    int32_t nodes, ranks, rank, spare;
    char name[32];
};

struct header {
    char magic[8];
    uint32_t version, pid;
    int64_t wall_minus_mono_ns;
    uint64_t rows_max;
    _Atomic uint64_t rows;    /* handed out, may exceed rows_max: the rest was dropped */
    _Atomic uint32_t comms;
    _Atomic uint32_t names;
    uint32_t interface_version, loads;
    struct comm comm[MAX_COMMS];
    char name[MAX_NAMES][NAME_BYTES];
};
_Static_assert(sizeof(struct header) <= HEADER_BYTES, "header fits");

/* Offsets are NCCL's; u is the start of the union. */
struct descr {
    uint64_t type; /* v4: one byte, the rest is padding and not zeroed */
    void *parent;
    int rank;
    union {
        unsigned char raw[88];
        struct { uint64_t seq; const char *func; const void *send; void *recv; size_t count; int root;
                 const char *datatype; uint8_t channels, warps; const char *algo, *proto; void *group; } coll;
        struct { const char *func; void *buff; const char *datatype; size_t count; int peer; uint8_t channels;
                 void *group; } p2p;
        struct { int pid; uint8_t channel; int peer, steps, chunk, is_send; } proxy_op;
        struct { int step; } proxy_step;
        struct { uint8_t channel; uint64_t timer; } kernel_ch;
        struct { int64_t id; void *data; } net;
        struct { uint8_t captured; int depth; } group_api;
        struct { const char *func; size_t count; const char *datatype; int root; void *stream; uint8_t captured; } coll_api;
        struct { const char *func; size_t count; const char *datatype; void *stream; uint8_t captured; } p2p_api;
        struct { void *stream; } launch;
        struct { uint64_t seq; const char *func; const void *send; void *recv; size_t count; int root;
                 const char *datatype, *sync; uint8_t intra; uint32_t batch_size, batches, ce_seq; void *stream; } ce;
    } u;
};
#define AT(member, offset) _Static_assert(__builtin_offsetof(struct descr, member) == (offset), #member)
AT(parent, 8); AT(rank, 16); AT(u, 24); AT(u.coll.func, 32); AT(u.coll.count, 56); AT(u.coll.root, 64);
AT(u.coll.datatype, 72); AT(u.coll.channels, 80); AT(u.coll.warps, 81); AT(u.coll.algo, 88); AT(u.coll.proto, 96);
AT(u.coll.group, 104); AT(u.p2p.buff, 32); AT(u.p2p.datatype, 40); AT(u.p2p.count, 48); AT(u.p2p.peer, 56);
AT(u.p2p.channels, 60); AT(u.p2p.group, 64); AT(u.proxy_op.channel, 28); AT(u.proxy_op.peer, 32);
AT(u.proxy_op.is_send, 44); AT(u.kernel_ch.timer, 32); AT(u.group_api.depth, 28); AT(u.coll_api.root, 48);
AT(u.coll_api.stream, 56); AT(u.coll_api.captured, 64); AT(u.p2p_api.stream, 48); AT(u.p2p_api.captured, 56);
AT(u.ce.stream, 104);
_Static_assert(sizeof(struct descr) == 112, "size of v5 and v6");

static struct header *shared;
static struct row *rows;
static uint64_t rows_max;
static _Atomic int ready; /* 0 not yet, 1 being made, 2 ready, 3 failed */
static int *mask_of_nccl;
static _Atomic int step_now, wanted_mask = COLL | P2P | KERNEL_CH | GROUP_API | COLL_API | P2P_API;
static int give_null, fail_init, clear_captured;
static const char *_Atomic seen_name[MAX_NAMES];
static __thread uint32_t own_tid;

static uint64_t now_ns(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint32_t tid(void) {
    if (!own_tid) own_tid = (uint32_t)syscall(SYS_gettid);
    return own_tid;
}

static int number(const char *name, int otherwise) {
    const char *text = getenv(name);
    return text && *text ? atoi(text) : otherwise;
}

/* NCCL's names are constants of the library, so the pointer is the key; a number > 0, or 0 where the table is full. */
static uint8_t name_number(const char *text) {
    if (!text) return 0;
    for (int i = 0; i < MAX_NAMES; i++) {
        const char *known = atomic_load_explicit(&seen_name[i], memory_order_acquire);
        if (known == text) return (uint8_t)(i + 1);
        if (!known) {
            const char *expected = NULL;
            if (atomic_compare_exchange_strong(&seen_name[i], &expected, text)) {
                strncpy(shared->name[i], text, NAME_BYTES - 1);
                atomic_fetch_add(&shared->names, 1);
                return (uint8_t)(i + 1);
            }
            if (expected == text) return (uint8_t)(i + 1);
        }
    }
    return 0;
}

static int open_file(int rank, int interface_version) {
    int expected = 0;
    if (!atomic_compare_exchange_strong(&ready, &expected, 1)) {
        while (atomic_load(&ready) == 1) usleep(100); /* init only, never on a collective's path */
        return atomic_load(&ready) == 2;
    }
    const char *folder = getenv("TWREC_DIR");
    char path[4096];
    rows_max = (uint64_t)number("TWREC_ROWS", 200000);
    size_t size = HEADER_BYTES + rows_max * sizeof(struct row);
    snprintf(path, sizeof path, "%s/rank-%d-%d.twrec", folder && *folder ? folder : "/tmp", rank, (int)getpid());
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    void *at = MAP_FAILED;
    if (file >= 0 && posix_fallocate(file, 0, (off_t)size) == 0)
        at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, 0);
    if (file >= 0) close(file);
    if (at == MAP_FAILED) {
        atomic_store(&ready, 3);
        return 0;
    }
    shared = at;
    rows = (struct row *)((char *)at + HEADER_BYTES);
    shared->version = 1;
    shared->pid = (uint32_t)getpid();
    shared->interface_version = (uint32_t)interface_version;
    shared->rows_max = rows_max;
    shared->loads++; /* the same file again: the library was unloaded and came back */
    shared->wall_minus_mono_ns = (int64_t)(now_ns(CLOCK_REALTIME) - now_ns(CLOCK_MONOTONIC));
    memcpy(shared->magic, "TWREC001", 8);
    wanted_mask = number("TWREC_MASK", wanted_mask);
    give_null = number("TWREC_NULL", 0);
    fail_init = number("TWREC_FAIL", 0);
    clear_captured = number("TWREC_CLEAR", 0);
    atomic_store(&ready, 2);
    return 1;
}

static struct row *take(uint64_t began, uint64_t *serial) {
    uint64_t place = atomic_fetch_add_explicit(&shared->rows, 1, memory_order_relaxed);
    *serial = place + 1;
    if (place >= rows_max) return NULL;
    struct row *row = &rows[place];
    row->begin_ns = began;
    row->tid = tid();
    row->step = atomic_load_explicit(&step_now, memory_order_relaxed);
    return row;
}

static void put(struct row *row, uint64_t serial) {
    row->cost_ns = (uint32_t)(now_ns(CLOCK_MONOTONIC) - row->begin_ns);
    __atomic_store_n(&row->serial, serial, __ATOMIC_RELEASE);
}

static result_t begin(void **context, uint64_t id, int *mask, const char *name, int nodes, int ranks, int rank,
                      int interface_version) {
    uint64_t serial, began = now_ns(CLOCK_MONOTONIC);
    if (!open_file(rank, interface_version)) return 0;
    uint32_t place = atomic_fetch_add(&shared->comms, 1);
    if (place < MAX_COMMS) {
        struct comm *comm = &shared->comm[place];
        comm->id = id; comm->nodes = nodes; comm->ranks = ranks; comm->rank = rank;
        if (name) strncpy(comm->name, name, sizeof comm->name - 1);
    }
    *context = (void *)(uintptr_t)(place + 1);
    struct row *row = take(began, &serial);
    if (row) {
        row->kind = INIT; row->comm = (uint8_t)(place + 1); row->rank = rank;
        row->field[0] = id; row->field[1] = (uint64_t)*mask; row->field[2] = (uintptr_t)mask;
        put(row, serial);
    }
    mask_of_nccl = mask;
    __atomic_store_n(mask, atomic_load(&wanted_mask), __ATOMIC_RELAXED);
    return fail_init ? 3 : 0; /* 3 is ncclInternalError */
}

static void captured_seen(uint8_t captured) {
    if (captured && clear_captured && mask_of_nccl) __atomic_and_fetch(mask_of_nccl, ~KERNEL_CH, __ATOMIC_RELAXED);
}

static uint64_t four(uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
    return (a & 255) | (b & 255) << 8 | (c & 255) << 16 | (d & 255) << 24;
}

static result_t start(void *context, void **handle, const struct descr *d, uint64_t type) {
    uint64_t serial, began = now_ns(CLOCK_MONOTONIC);
    if (atomic_load_explicit(&ready, memory_order_acquire) != 2) { *handle = NULL; return 0; }
    struct row *row = take(began, &serial);
    *handle = give_null ? NULL : (void *)(uintptr_t)serial;
    if (!row) return 0;
    row->kind = START;
    row->comm = (uint8_t)(uintptr_t)context;
    row->type = (uint32_t)type;
    row->handle = serial;
    row->parent = (uintptr_t)d->parent;
    row->rank = d->rank;
    uint64_t *f = row->field;
    switch (type) {
    case COLL:
        f[0] = d->u.coll.seq; f[1] = d->u.coll.count; f[2] = (uint32_t)d->u.coll.root;
        f[2] |= (uint64_t)d->u.coll.channels << 32 | (uint64_t)d->u.coll.warps << 40;
        f[3] = four(name_number(d->u.coll.func), name_number(d->u.coll.datatype), name_number(d->u.coll.algo),
                    name_number(d->u.coll.proto));
        break;
    case P2P:
        f[1] = d->u.p2p.count; f[2] = (uint32_t)d->u.p2p.peer; f[2] |= (uint64_t)d->u.p2p.channels << 32;
        f[3] = four(name_number(d->u.p2p.func), name_number(d->u.p2p.datatype), 0, 0);
        break;
    case PROXY_OP:
        f[0] = (uint32_t)d->u.proxy_op.pid; f[1] = (uint32_t)d->u.proxy_op.peer;
        f[2] = (uint32_t)d->u.proxy_op.steps | (uint64_t)(uint32_t)d->u.proxy_op.chunk << 32;
        f[3] = (uint64_t)d->u.proxy_op.channel | (uint64_t)(d->u.proxy_op.is_send != 0) << 8;
        break;
    case PROXY_STEP: f[0] = (uint32_t)d->u.proxy_step.step; break;
    case KERNEL_CH: f[0] = d->u.kernel_ch.timer; f[1] = d->u.kernel_ch.channel; break;
    case NET_PLUGIN: f[0] = (uint64_t)d->u.net.id; break;
    case GROUP_API:
        f[0] = d->u.group_api.captured; f[1] = (uint32_t)d->u.group_api.depth;
        captured_seen(d->u.group_api.captured);
        break;
    case COLL_API:
        f[0] = d->u.coll_api.captured; f[1] = d->u.coll_api.count; f[2] = (uintptr_t)d->u.coll_api.stream;
        f[3] = four(name_number(d->u.coll_api.func), name_number(d->u.coll_api.datatype), 0, 0);
        captured_seen(d->u.coll_api.captured);
        break;
    case P2P_API:
        f[0] = d->u.p2p_api.captured; f[1] = d->u.p2p_api.count; f[2] = (uintptr_t)d->u.p2p_api.stream;
        f[3] = four(name_number(d->u.p2p_api.func), name_number(d->u.p2p_api.datatype), 0, 0);
        captured_seen(d->u.p2p_api.captured);
        break;
    case KERNEL_LAUNCH: f[0] = (uintptr_t)d->u.launch.stream; break;
    case CE_COLL:
        f[0] = d->u.ce.seq; f[1] = d->u.ce.count; f[2] = d->u.ce.ce_seq;
        f[3] = four(name_number(d->u.ce.func), name_number(d->u.ce.datatype), name_number(d->u.ce.sync), 0);
        break;
    default: break;
    }
    put(row, serial);
    return 0;
}

static void of_handle(struct row *row, uint64_t handle) {
    row->handle = handle;
    if (handle && handle <= rows_max) { /* handle was given out by us, so its row is there */
        const struct row *origin = &rows[handle - 1];
        row->type = origin->type;
        row->comm = origin->comm;
    }
}

static result_t stop(void *handle) {
    uint64_t serial, began = now_ns(CLOCK_MONOTONIC);
    if (atomic_load_explicit(&ready, memory_order_acquire) != 2) return 0;
    struct row *row = take(began, &serial);
    if (!row) return 0;
    row->kind = STOP;
    of_handle(row, (uintptr_t)handle);
    put(row, serial);
    return 0;
}

static result_t state(void *handle, int what, const uint64_t *args) {
    uint64_t serial, began = now_ns(CLOCK_MONOTONIC);
    if (atomic_load_explicit(&ready, memory_order_acquire) != 2) return 0;
    struct row *row = take(began, &serial);
    if (!row) return 0;
    row->kind = STATE;
    row->state = (uint16_t)what;
    of_handle(row, (uintptr_t)handle);
    /* 22 KernelChStop: GPU time; 8-12, 20 ProxyStep: bytes. The group states come with a null pointer. */
    if (args) row->field[0] = *args;
    put(row, serial);
    return 0;
}

static result_t finalize(void *context) {
    uint64_t serial, began = now_ns(CLOCK_MONOTONIC);
    if (atomic_load(&ready) != 2) return 0;
    struct row *row = take(began, &serial);
    if (!row) return 0;
    row->kind = FINALIZE;
    row->comm = (uint8_t)(uintptr_t)context;
    put(row, serial);
    return 0;
}

/* ---- the three interfaces */
#define PUBLIC __attribute__((visibility("default")))
#if !defined(ONLY) || ONLY == 4
static result_t init4(void **c, int *mask, const char *name, uint64_t id, int nodes, int ranks, int rank, logger_t log) {
    (void)log;
    return begin(c, id, mask, name, nodes, ranks, rank, 4);
}
static result_t start4(void *c, void **h, const struct descr *d) { return start(c, h, d, *(const uint8_t *)d); }
PUBLIC const struct {
    const char *name;
    result_t (*init)(void **, int *, const char *, uint64_t, int, int, int, logger_t);
    result_t (*start)(void *, void **, const struct descr *);
    result_t (*stop)(void *);
    result_t (*state)(void *, int, const uint64_t *);
    result_t (*finalize)(void *);
} ncclProfiler_v4 = {"twrec", init4, start4, stop, state, finalize};
#endif
#if !defined(ONLY) || ONLY >= 5
static result_t start5(void *c, void **h, const struct descr *d) { return start(c, h, d, d->type); }
struct v5 {
    const char *name;
    result_t (*init)(void **, uint64_t, int *, const char *, int, int, int, logger_t);
    result_t (*start)(void *, void **, const struct descr *);
    result_t (*stop)(void *);
    result_t (*state)(void *, int, const uint64_t *);
    result_t (*finalize)(void *);
};
#endif
#if !defined(ONLY) || ONLY == 5
static result_t init5(void **c, uint64_t id, int *mask, const char *name, int nodes, int ranks, int rank, logger_t log) {
    (void)log;
    return begin(c, id, mask, name, nodes, ranks, rank, 5);
}
PUBLIC const struct v5 ncclProfiler_v5 = {"twrec", init5, start5, stop, state, finalize};
#endif
#if !defined(ONLY) || ONLY == 6
static result_t init6(void **c, uint64_t id, int *mask, const char *name, int nodes, int ranks, int rank, logger_t log) {
    (void)log;
    return begin(c, id, mask, name, nodes, ranks, rank, 6);
}
PUBLIC const struct v5 ncclProfiler_v6 = {"twrec", init6, start5, stop, state, finalize};
#endif

/* ---- for the training script (ctypes) */
PUBLIC void twrec_mask(int mask) {
    wanted_mask = mask;
    if (mask_of_nccl) __atomic_store_n(mask_of_nccl, mask, __ATOMIC_RELAXED);
}
PUBLIC void twrec_step(int step) { atomic_store(&step_now, step); }
PUBLIC uint64_t twrec_count(void) { return atomic_load(&ready) == 2 ? atomic_load(&shared->rows) : 0; }
