/* The shared file: made once a process, really allocated, so that a full disk fails here and not at a later store. */
#define _GNU_SOURCE
#include "layout.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define NEWEST_TOGGLED 23100 /* from NCCL 2.31 on stamps are dear, and drift if they are switched on and off */
#define MAX_RANK 1000000

enum { LOG_INFO = 3, LOG_INIT = 1 };          /* NCCL's words */
enum { UNTRIED, TRYING, READY, IMPOSSIBLE };

static _Atomic int state;
static struct tw_file *file;

uint64_t tw_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static long number_of(const char *text, long most) {
    if (!text || !*text) return -1;
    long value = 0;
    for (; *text; text++) {
        if (*text < '0' || *text > '9' || value > most) return -1;
        value = value * 10 + (*text - '0');
    }
    return value <= most ? value : -1;
}

/* The rank by the environment, as the hook reads it, else that in the first communicator. Readers go by pid and start. */
static long rank_of(int fallback) {
    static const char *const names[] = {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"};
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
        long rank = number_of(getenv(names[i]), MAX_RANK - 1);
        if (rank >= 0) return rank;
    }
    return fallback >= 0 && fallback < MAX_RANK ? fallback : 0;
}

/* Start of this process in ticks since boot, as /proc/PID/stat has it; 0: not known. */
static uint64_t start_ticks(void) {
    char text[1024];
    int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    ssize_t size = read(fd, text, sizeof text - 1);
    close(fd);
    if (size <= 0) return 0;
    text[size] = 0;
    char *at = strrchr(text, ')'); /* the name in brackets may hold anything */
    for (int field = 2; at && field < 22; field++) {
        at = strchr(at + 1, ' ');
    }
    return at ? strtoull(at + 1, NULL, 10) : 0;
}

/* As NCCL says it, 22907 for 2.29.7; 0 if it cannot be asked. The logger lies in NCCL's own library. */
static int nccl_version(tw_log log) {
    Dl_info where;
    void *address;
    int version = 0, (*ask)(int *);
    memcpy(&address, &log, sizeof address);
    if (!address || !dladdr(address, &where) || !where.dli_fname) return 0;
    void *library = dlopen(where.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    if (!library) library = dlopen(NULL, RTLD_LAZY); /* NCCL within the program itself */
    if (!library) return 0;
    void *symbol = dlsym(library, "ncclGetVersion");
    memcpy(&ask, &symbol, sizeof ask);
    if (symbol && ask(&version) != 0) version = 0;
    dlclose(library);
    return version;
}

/* The v4 interface is chosen by 2.27 alone, v3 by 2.26, which has no stamps. */
static int kernel_mode(int interface, int version) {
    const char *asked = getenv("TRAINWARDEN_NCCL_KERNELS");
    bool on = asked && !strcmp(asked, "on"), off = asked && !strcmp(asked, "off");
    if (interface < 4 || off) return TW_NEVER;
    if (interface == 4 || (version > 0 && version < NEWEST_TOGGLED)) return TW_SAMPLED;
    return on ? TW_ALWAYS : TW_NEVER;
}

static int create(char *path, size_t room, const char *folder, long rank, uint64_t ticks) {
    struct stat found;
    if (stat(folder, &found) || !S_ISDIR(found.st_mode)) return -1;
    mode_t mode = 0600 | (found.st_mode & 040); /* whoever the folder lets in may read, as with the hook's files */
    /* With the start, as a container begins each time with the same pids. */
    int written = snprintf(path, room, "%s/rank-%ld-%d-%llu.nccl", folder, rank, (int)getpid(), (unsigned long long)ticks);
    if (written < 0 || (size_t)written >= room) return -1;
    unlink(path); /* of this very process, before it ran another program by exec */
    return open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
}

static struct tw_file *make(int interface, int fallback_rank, tw_log log, char *path, size_t room) {
    const char *folder = getenv("TRAINWARDEN_HOOK_DIR");
    if (!folder || !*folder) return NULL;
    uint64_t ticks = start_ticks();
    int fd = create(path, room, folder, rank_of(fallback_rank), ticks);
    if (fd < 0) return NULL;
    void *memory = MAP_FAILED;
    int refused;
    do refused = posix_fallocate(fd, 0, sizeof(struct tw_file));
    while (refused == EINTR); /* a signal came in the midst */
    if (!refused) memory = mmap(NULL, sizeof(struct tw_file), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (memory == MAP_FAILED) {
        unlink(path);
        return NULL;
    }
    struct tw_file *made = memory;
    struct tw_header *header = &made->header;
    struct stat namespace;
    long every = number_of(getenv("TRAINWARDEN_NCCL_EVERY"), 1 << 20);
    header->abi = TW_ABI;
    header->pid = (uint64_t)getpid();
    header->start_ticks = ticks;
    header->pid_namespace = stat("/proc/self/ns/pid", &namespace) ? 0 : namespace.st_ino;
    header->interface = (uint64_t)interface;
    header->nccl_version = (uint64_t)nccl_version(log);
    header->born_ns = tw_now();
    header->kernel_mode = (uint64_t)kernel_mode(interface, (int)header->nccl_version);
    header->every = every > 0 ? (uint64_t)every : 64;
    atomic_thread_fence(memory_order_release);
    header->magic = TW_MAGIC;
    return made;
}

struct tw_file *tw_open(int interface, int fallback_rank, tw_log log) {
    int expected = UNTRIED;
    if (atomic_compare_exchange_strong(&state, &expected, TRYING)) {
        char path[4096] = "";
        file = make(interface, fallback_rank, log, path, sizeof path);
        const char *said = file ? "trainwarden: calls are told in %s" : "trainwarden: no file for calls (%s): disabled";
        if (log) log(LOG_INFO, LOG_INIT, "trainwarden", 0, said, *path ? path : "TRAINWARDEN_HOOK_DIR");
        atomic_store(&state, file ? READY : IMPOSSIBLE);
    }
    while (atomic_load(&state) == TRYING) sched_yield(); /* two communicators are made at once, by two threads */
    return atomic_load(&state) == READY ? file : NULL;
}
