/* Plays NCCL to a profiler plug-in, without a GPU: loads it, calls it in NCCL's order, and badly on purpose.
 *
 *   player PLUGIN VERSION script                     commands from standard input, one answer a line
 *   player PLUGIN VERSION storm COMMS CALLS          threads of callers and proxies, with everything that goes wrong
 *   player PLUGIN VERSION churn ROUNDS               communicators that come and go, the library too
 *   player PLUGIN VERSION bench CALLS KERNELS        nanoseconds a call, and memory before and after
 */
#define _GNU_SOURCE
#include "interface.h"
#include "layout.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MOST_COMMS 64

static void *library;
static const char *path;
static int version, mask, lines;
static char **arguments;
static struct tw_file *file;

static const struct profiler_v3 *v3;
static const struct profiler_v4 *v4;
static const struct profiler_v5 *v5;
static int (*start_event)(void *, void **, struct event *), (*stop_event)(void *), (*record_state)(void *, int, void *);
static int (*finalize)(void *);

struct comm {
    void *context;
    uint64_t id, seq;
    int ranks, number;
};
static struct comm comms[MOST_COMMS];

/* What the plug-in asks of the library that it was called from. */
int ncclGetVersion(int *said) {
    const char *told = getenv("PLAYER_NCCL");
    *said = told ? atoi(told) : version == 4 ? 22705 : 22809;
    return 0;
}

/* Signals come in the midst of it, so often as the environment says. */
int posix_fallocate(int fd, off_t at, off_t size) {
    static int interrupted;
    const char *told = getenv("PLAYER_SIGNALS");
    if (told && interrupted++ < atoi(told)) return EINTR;
    int (*real)(int, off_t, off_t);
    void *symbol = dlsym(RTLD_NEXT, "posix_fallocate");
    memcpy(&real, &symbol, sizeof real);
    return real(fd, at, size);
}

/* Time passes when the script says so. */
static time_t passed_s;
static uint64_t stands_ns; /* or stands still, at this */
int clock_gettime(clockid_t which, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) {
        void *symbol = dlsym(RTLD_NEXT, "clock_gettime");
        memcpy(&real, &symbol, sizeof real);
    }
    int said = real(which, now);
    if (which == CLOCK_MONOTONIC) now->tv_sec += passed_s;
    if (which == CLOCK_MONOTONIC && stands_ns) {
        now->tv_sec = (time_t)(stands_ns / 1000000000u);
        now->tv_nsec = (long)(stands_ns % 1000000000u);
    }
    return said;
}

static void logged(int level, unsigned long flags, const char *where, int line, const char *format, ...) {
    (void)level, (void)flags, (void)where, (void)line, (void)format;
    lines++;
}

static uint64_t clock_ns(clockid_t which) {
    struct timespec now;
    clock_gettime(which, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint64_t now_ns(void) { return clock_ns(CLOCK_MONOTONIC); }

#define TAKE(api) (start_event = (api)->start, stop_event = (api)->stop, record_state = (api)->state, \
                   finalize = (api)->finalize)

static void load(void) {
    char symbol[32];
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        exit(2);
    }
    snprintf(symbol, sizeof symbol, "ncclProfiler_v%d", version);
    void *api = dlsym(library, symbol);
    if (!api) exit(3);
    if (version == 3) v3 = api, TAKE(v3);
    if (version == 4) v4 = api, TAKE(v4);
    if (version == 5) v5 = api, TAKE(v5);
}

/* Where the hook would find the file. */
static void find(void) {
    const char *folder = getenv("TRAINWARDEN_HOOK_DIR");
    char part[64], name[4096];
    snprintf(part, sizeof part, "-%d", (int)getpid());
    DIR *all = folder ? opendir(folder) : NULL;
    for (struct dirent *entry; all && !file && (entry = readdir(all));) {
        if (!strstr(entry->d_name, ".nccl") || !strstr(entry->d_name, part)) continue;
        snprintf(name, sizeof name, "%s/%s", folder, entry->d_name);
        int fd = open(name, O_RDWR);
        void *memory = mmap(NULL, sizeof *file, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (memory != MAP_FAILED) file = memory;
        close(fd);
    }
    if (all) closedir(all);
}

static int open_comm(struct comm *comm, const char *name, int nodes, int rank) {
    int said = version == 3   ? v3->init(&comm->context, &mask)
               : version == 4 ? v4->init(&comm->context, &mask, name, comm->id, nodes, comm->ranks, rank, logged)
                              : v5->init(&comm->context, comm->id, &mask, name, nodes, comm->ranks, rank, logged);
    if (!file) find();
    return said;
}

static void set_type(struct event *event, uint64_t type) {
    if (version < 5) {
        memset(&event->type, 0xa5, sizeof event->type); /* NCCL's adapters leave the rest as it was */
        event->type.narrow = (uint8_t)type;
    } else {
        event->type.wide = type;
    }
}

static int read_mask(void) { return __atomic_load_n(&mask, __ATOMIC_RELAXED); }

/* The way of one call through the host; the handle of its event, and whether the device is to stamp it. */
static void *call(struct comm *comm, const char *func, uint64_t seq, size_t count, const char *type, int peer,
                  int channels, bool captured, bool *stamped) {
    struct event event;
    void *api = NULL, *task = NULL, *group = NULL;
    bool lone = peer < 0;
    int asked = read_mask(); /* before it tells of anything, as 2.27 to 2.30 do (see tests/data/nccl_host) */
    if (version == 5) {
        memset(&event, 0, sizeof event);
        set_type(&event, GROUP_API);
        event.group_api.captured = captured;
        start_event(comm->context, &group, &event);
        if (group) record_state(group, 23, NULL);
        memset(&event, 0, sizeof event);
        set_type(&event, lone ? COLL_API : P2P_API);
        event.parent = group;
        if (lone) event.coll_api.captured = captured;
        else event.p2p_api.captured = captured;
        start_event(comm->context, &api, &event);
        if (api) stop_event(api);
    }
    *stamped = asked & KERNEL_CH;
    if (captured) return NULL;
    void *plan = NULL;
    memset(&event, 0xa5, sizeof event);
    set_type(&event, GROUP);
    start_event(comm->context, &plan, &event);
    if (plan || version == 5) {
        memset(&event, 0xa5, sizeof event);
        set_type(&event, lone ? COLL : P2P);
        event.parent = version == 5 ? api : plan;
        event.rank = 0;
        if (version == 3 && lone) {
            event.coll_v3.name = "of v3", event.coll_v3.comm = comm->id;
            event.coll_v3.call = (struct coll){.seq = seq, .func = func, .count = count, .datatype = type};
        } else if (version == 3) {
            event.p2p_v3.name = "of v3", event.p2p_v3.comm = comm->id, event.p2p_v3.func = func;
            event.p2p_v3.datatype = type, event.p2p_v3.count = count, event.p2p_v3.peer = peer;
        } else if (lone) {
            event.coll.seq = seq, event.coll.func = func, event.coll.count = count, event.coll.datatype = type;
            event.coll.channels = (uint8_t)channels;
        } else {
            event.p2p.func = func, event.p2p.count = count, event.p2p.datatype = type, event.p2p.peer = peer;
            event.p2p.channels = (uint8_t)channels;
        }
        if (asked & (COLL | P2P | KERNEL_CH)) start_event(comm->context, &task, &event);
        if (task) stop_event(task);
    }
    if (plan) stop_event(plan);
    return task;
}

static void *kernel_start(struct comm *comm, void *parent, int channel, uint64_t stamp) {
    struct event event;
    void *handle = NULL;
    memset(&event, 0xa5, sizeof event);
    set_type(&event, KERNEL_CH);
    event.parent = parent;
    event.kernel.channel = (uint8_t)channel;
    event.kernel.stamp = stamp;
    start_event(comm->context, &handle, &event);
    return handle;
}

/* One event as a recording has it: "comm type parent captured seq count peer channels channel stamp func datatype". */
static void *recorded(const char *line) {
    static char names[64][32]; /* NCCL's are constants, and may be read later */
    static int used;
    unsigned long long type, parent, seq, count, stamp;
    int at, captured, peer, channels, channel;
    char *func = names[used++ % 64], *datatype = names[used++ % 64];
    struct event event;
    void *handle = NULL;
    if (sscanf(line, "event %d %llu %llu %d %llu %llu %d %d %d %llu %31s %31s", &at, &type, &parent, &captured, &seq,
               &count, &peer, &channels, &channel, &stamp, func, datatype) != 12)
        return NULL;
    memset(&event, 0, sizeof event);
    set_type(&event, type);
    event.parent = (void *)(uintptr_t)parent;
    if (type == GROUP_API) event.group_api.captured = captured;
    if (type == COLL_API) event.coll_api.captured = captured;
    if (type == P2P_API) event.p2p_api.captured = captured;
    if (type == COLL) {
        event.coll.seq = seq, event.coll.func = func, event.coll.count = count, event.coll.datatype = datatype;
        event.coll.channels = (uint8_t)channels;
    }
    if (type == P2P) {
        event.p2p.func = func, event.p2p.count = count, event.p2p.datatype = datatype, event.p2p.peer = peer;
        event.p2p.channels = (uint8_t)channels;
    }
    if (type == KERNEL_CH) event.kernel.channel = (uint8_t)channel, event.kernel.stamp = stamp;
    start_event(comms[at].context, &handle, &event);
    return handle;
}

static void kernel_stop(void *handle, uint64_t stamp) {
    record_state(handle, KERNEL_CH_STOP, &stamp);
    stop_event(handle);
}

/* -- commands */

static void script(void) {
    char line[1024], name[256], func[64], type[64];
    unsigned long long id, seq, count, handle, stamp, parent;
    int at, nodes, ranks, rank, peer, channels;
    bool stamped;
    while (fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "init %d %llx %255s %d %d %d", &at, &id, name, &nodes, &ranks, &rank) == 6) {
            comms[at] = (struct comm){.id = id, .ranks = ranks};
            printf("%d %d\n", open_comm(&comms[at], strcmp(name, "-") ? name : NULL, nodes, rank), comms[at].context != NULL);
        } else if (sscanf(line, "end %d", &at) == 1) {
            printf("%d\n", finalize(comms[at].context));
        } else if (sscanf(line, "step %llu", &seq) == 1) {
            if (file) atomic_store(&file->header.step, seq + 1);
            printf("%d\n", file != NULL);
        } else if (sscanf(line, "until %llu", &seq) == 1) {
            atomic_store(&file->header.sample_until, seq);
            printf("1\n");
        } else if (sscanf(line, "from %llu", &seq) == 1) {
            atomic_store(&file->header.sample_from, seq);
            printf("1\n");
        } else if (sscanf(line, "coll %d %63s %llu %llu %63s %d", &at, func, &seq, &count, type, &channels) == 6) {
            void *made = call(&comms[at], func, seq, count, type, -1, channels, false, &stamped);
            printf("%llu %d\n", (unsigned long long)(uintptr_t)made, stamped);
        } else if (sscanf(line, "p2p %d %63s %llu %63s %d %d", &at, func, &count, type, &peer, &channels) == 6) {
            void *made = call(&comms[at], func, 0, count, type, peer, channels, false, &stamped);
            printf("%llu %d\n", (unsigned long long)(uintptr_t)made, stamped);
        } else if (sscanf(line, "capture %d", &at) == 1) {
            call(&comms[at], "AllReduce", 0, 1, "ncclInt8", -1, 1, true, &stamped);
            printf("%d\n", stamped);
        } else if (sscanf(line, "graph %d", &at) == 1) { /* the hook says that one is captured, or no more */
            void (*tell)(int);
            void *symbol = dlsym(library, "trainwarden_nccl_capture");
            memcpy(&tell, &symbol, sizeof tell);
            tell(at);
            printf("1\n");
        } else if (!strncmp(line, "event ", 6)) {
            printf("%llu\n", (unsigned long long)(uintptr_t)recorded(line));
        } else if (sscanf(line, "state %llu %d %llu", &handle, &at, &stamp) == 3) {
            uint64_t told = stamp;
            printf("%d\n", record_state((void *)(uintptr_t)handle, at, &told));
        } else if (sscanf(line, "halt %llu", &handle) == 1) {
            printf("%d\n", stop_event((void *)(uintptr_t)handle));
        } else if (sscanf(line, "at %llu", &stamp) == 1) { /* nanoseconds */
            stands_ns = stamp;
            printf("1\n");
        } else if (sscanf(line, "begin %d %llu %d %llu", &at, &parent, &channels, &stamp) == 4) {
            void *made = kernel_start(&comms[at], (void *)(uintptr_t)parent, channels, stamp);
            printf("%llu\n", (unsigned long long)(uintptr_t)made);
        } else if (sscanf(line, "stop %llu %llu", &handle, &stamp) == 2) {
            kernel_stop((void *)(uintptr_t)handle, stamp);
            printf("1\n");
        } else if (sscanf(line, "start %d %llu", &at, &id) == 2) { /* an event of any kind */
            struct event event;
            void *made = NULL;
            memset(&event, 0, sizeof event);
            set_type(&event, id);
            start_event(comms[at].context, &made, &event);
            printf("%llu\n", (unsigned long long)(uintptr_t)made);
        } else if (sscanf(line, "fork %d", &at) == 1) { /* whose child ends a communicator of its parent's */
            pid_t child = fork();
            if (!child) _exit(finalize(comms[at].context));
            printf("%d\n", waitpid(child, NULL, 0) == child);
        } else if (!strncmp(line, "exec", 4)) {
            printf("1\n");
            fflush(stdout);
            execv("/proc/self/exe", arguments);
        } else if (!strncmp(line, "reload", 6)) {
            dlclose(library);
            load();
            printf("1\n");
        } else if (!strncmp(line, "now", 3)) {
            printf("%llu\n", (unsigned long long)now_ns());
        } else if (sscanf(line, "pass %d", &at) == 1) { /* seconds */
            passed_s += at;
            printf("1\n");
        } else if (!strncmp(line, "mask", 4)) {
            printf("%d\n", read_mask());
        } else if (!strncmp(line, "layout", 6)) {
            printf("%d %zu %zu %zu %zu %zu %zu %zu %zu\n", TW_ABI, offsetof(struct tw_header, step) / 8,
                   offsetof(struct tw_header, calls) / 8, offsetof(struct tw_header, kernels) / 8,
                   offsetof(struct tw_header, own_ns) / 8, offsetof(struct tw_file, comms), offsetof(struct tw_file, calls), sizeof(struct tw_comm),
                   sizeof(struct tw_file));
        } else if (!strncmp(line, "lines", 5)) {
            printf("%d\n", lines);
        } else {
            printf("what?\n");
        }
        fflush(stdout);
    }
}

/* -- threads */

#define QUEUE 4096
#define STEP_CALLS 50
struct kernel_work {
    void *task;
    int channels;
};
struct player {
    struct comm comm;
    pthread_t caller, proxy;
    struct kernel_work queue[QUEUE];
    _Atomic uint64_t head, tail, stamped;
    _Atomic bool over;
    uint64_t calls;
    unsigned seed;
};
static void *_Atomic somebodys; /* a handle that threads take from one another */

static void *proxy(void *given) {
    struct player *player = given;
    unsigned seed = player->seed * 7 + 1;
    void *late = NULL;
    for (;;) {
        uint64_t tail = atomic_load(&player->tail);
        if (tail == atomic_load(&player->head)) {
            if (atomic_load(&player->over)) return NULL;
            sched_yield();
            continue;
        }
        struct kernel_work work = player->queue[tail % QUEUE];
        int luck = rand_r(&seed) % 64;
        void *handles[64];
        for (int channel = 0; channel < work.channels; channel++) {
            void *parent = luck == 0 ? NULL : luck == 1 ? (void *)(uintptr_t)rand_r(&seed) : work.task;
            if (luck == 2) parent = atomic_load(&somebodys);
            handles[channel] = kernel_start(&player->comm, parent, channel, now_ns() - 1000);
        }
        for (int channel = 0; channel < work.channels; channel++) {
            if (luck == 3) record_state(handles[channel], KERNEL_CH_STOP, NULL);
            if (luck == 4) kernel_stop(NULL, now_ns());
            if (luck == 5) kernel_stop((void *)(uintptr_t)rand_r(&seed), now_ns());
            if (luck == 6) late = handles[channel];
            else if (handles[channel]) kernel_stop(handles[channel], luck == 7 ? now_ns() - 5000000 : now_ns());
            if (luck == 8 && handles[channel]) kernel_stop(handles[channel], now_ns()); /* twice */
            if (luck == 9) atomic_store(&somebodys, handles[channel]);
        }
        if (luck == 10 && late) kernel_stop(late, now_ns());
        atomic_store(&player->tail, tail + 1);
    }
}

static void *caller(void *given) {
    struct player *player = given;
    void (*graph)(int);
    void *symbol = dlsym(library, "trainwarden_nccl_capture");
    memcpy(&graph, &symbol, sizeof graph);
    for (uint64_t seq = 0; seq < player->calls; seq++) {
        if (seq % STEP_CALLS == 0 && file) atomic_fetch_add(&file->header.step, 1);
        if (version == 5 && seq % 400 < 20) graph(seq % 400 < 10); /* of which none holds NCCL */
        bool stamped, pair = seq % 8 == 7;
        int channels = 1 + (int)(seq % 4);
        void *task = call(&player->comm, pair ? "Send" : "AllReduce", seq, 1024 + seq, "ncclFloat32", pair ? 1 : -1,
                          channels, false, &stamped);
        if (stamped) atomic_fetch_add(&player->stamped, 1);
        if (seq % 97 == 0) stop_event((void *)(uintptr_t)rand_r(&player->seed));
        if (seq % 101 == 0) call(&(struct comm){.context = (void *)(uintptr_t)rand_r(&player->seed)}, "AllReduce", 0, 1,
                                 "ncclInt8", -1, 1, false, &(bool){false});
        if (!stamped || !task) continue;
        while (atomic_load(&player->head) - atomic_load(&player->tail) >= QUEUE) sched_yield();
        uint64_t head = atomic_load(&player->head);
        player->queue[head % QUEUE] = (struct kernel_work){task, channels};
        atomic_store(&player->head, head + 1);
    }
    atomic_store(&player->over, true);
    return NULL;
}

static struct player players[MOST_COMMS];

static void *opened(void *given) {
    struct player *player = given;
    open_comm(&player->comm, "storm", 1, player->comm.number);
    return NULL;
}

static void storm(int count, uint64_t calls) {
    pthread_t openers[MOST_COMMS];
    for (int i = 0; i < count; i++) {
        players[i].comm = (struct comm){.id = 0x1000 + (uint64_t)i, .ranks = 8, .number = i};
        players[i].calls = calls, players[i].seed = (unsigned)i + 1;
    }
    open_comm(&players[0].comm, "storm", 1, 0);
    for (int i = 1; i < count; i++) pthread_create(&openers[i], NULL, opened, &players[i]);
    for (int i = 1; i < count; i++) pthread_join(openers[i], NULL);
    for (int i = 0; i < count; i++) {
        pthread_create(&players[i].proxy, NULL, proxy, &players[i]);
        pthread_create(&players[i].caller, NULL, caller, &players[i]);
    }
    for (int i = 0; i < count; i++) {
        pthread_join(players[i].caller, NULL);
        pthread_join(players[i].proxy, NULL);
    }
    printf("{\"stamped\": [");
    for (int i = 0; i < count; i++) printf("%s%llu", i ? ", " : "", (unsigned long long)atomic_load(&players[i].stamped));
    printf("]}\n");
    fflush(stdout);
    for (int i = 0; i < count; i++) finalize(players[i].comm.context);
    for (int i = 0; i < count; i++) call(&players[i].comm, "AllReduce", 0, 1, "ncclInt8", -1, 1, false, &(bool){false});
}

static void churn(int rounds) {
    bool stamped;
    for (int round = 0; round < rounds; round++) {
        struct comm mine[40];
        for (int i = 0; i < 40; i++) {
            mine[i] = (struct comm){.id = (uint64_t)round << 8 | (unsigned)i, .ranks = 2};
            open_comm(&mine[i], "comes and goes", 1, 0);
            call(&mine[i], "AllReduce", 0, 8, "ncclInt8", -1, 1, false, &stamped);
            call(&mine[i], "Send", 0, 8, "ncclInt8", i, 1, false, &stamped);
        }
        for (int i = 0; i < 40; i++) finalize(mine[i].context);
        for (int i = 0; i < 40; i++) stop_event(mine[i].context);
        dlclose(library);
        load();
    }
    puts("{}");
}

static long resident(void) {
    long pages = 0;
    FILE *said = fopen("/proc/self/statm", "r");
    if (said && fscanf(said, "%*d %ld", &pages) != 1) pages = 0;
    if (said) fclose(said);
    return pages * sysconf(_SC_PAGESIZE);
}

static void bench(uint64_t calls, bool kernels) {
    struct comm comm = {.id = 1, .ranks = 8};
    bool stamped;
    open_comm(&comm, "bench", 1, 0);
    atomic_store(&file->header.step, kernels ? 1 : 2);
    uint64_t warm = calls / 10 + 20000;
    for (uint64_t i = 0; i < warm; i++) call(&comm, "AllReduce", i, 4096, "ncclFloat32", -1, 1, false, &stamped);
    long before = resident();
    uint64_t took = 0, best = UINT64_MAX;
    for (int round = 0; round < 10; round++) {
        uint64_t began = clock_ns(CLOCK_THREAD_CPUTIME_ID);
        for (uint64_t i = 0; i < calls / 10; i++) {
            void *task = call(&comm, "AllReduce", i, 4096, "ncclFloat32", -1, 1, false, &stamped);
            if (kernels && task) kernel_stop(kernel_start(&comm, task, 0, now_ns()), now_ns());
        }
        took = clock_ns(CLOCK_THREAD_CPUTIME_ID) - began;
        if (took < best) best = took;
    }
    printf("{\"ns\": %.1f, \"grown_bytes\": %ld, \"file_bytes\": %zu}\n", (double)best / (double)(calls / 10),
           resident() - before, sizeof *file);
}

int main(int count, char **given) {
    if (count < 4) return 2;
    arguments = given, path = given[1], version = atoi(given[2]);
    load();
    if (!strcmp(given[3], "script")) script();
    else if (!strcmp(given[3], "storm") && count == 6)
        storm(atoi(given[4]), strtoull(given[5], NULL, 10));
    else if (!strcmp(given[3], "churn") && count == 5) churn(atoi(given[4]));
    else if (!strcmp(given[3], "bench") && count == 6) bench(strtoull(given[4], NULL, 10), atoi(given[5]));
    else return 2;
    return 0;
}
