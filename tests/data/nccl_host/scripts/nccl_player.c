/* Plays NCCL's profiler callbacks at a plug-in, without NCCL and without a GPU (Apache-2.0, the trainwarden project).
 *
 *   gcc -O2 -Wall -Wextra -pthread nccl_player.c -o nccl_player -ldl
 *   ./nccl_player PLUGIN.so 4|5 OPS CHANNELS [cost]
 *
 * The order is the one of NCCL 2.28.9's source (enqueue.cc, plugin/profiler.cc, transport/profiler.cc): the calling
 * thread plays GroupApi, its state 23, CollApi, Group, Coll and their ends; a second thread, as the proxy progress
 * thread does, plays KernelCh with GPU stamps afterwards, when the parent has long been stopped. Odd things that the
 * real one does are in it: a NULL stop-less handle, the CollApi handle of the operation before when the mask was off,
 * a repeated sequence number (graph replay without KernelCh), a state with a null pointer, stamps of a wrapped slot.
 * `cost` prints nanoseconds per callback seen from the caller.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef int (*start_t)(void *, void **, void *);
typedef int (*stop_t)(void *);
typedef int (*state_t)(void *, int, void *);
struct plugin { const char *name; void *init; start_t start; stop_t stop; state_t state; stop_t finalize; };

static struct plugin *plug;
static void *context;
static int version, ops, channels, mask;
static struct { void *task; uint64_t start, stop; } *work; /* by operation * channels + channel */
static _Atomic int published;
static uint64_t spent, calls;

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void descr(unsigned char *d, uint64_t type, void *parent) {
    memset(d, 0, 112);
    if (version == 4) { memset(d + 1, 0xa5, 7); d[0] = (unsigned char)type; } /* v4: the padding is not zeroed */
    else memcpy(d, &type, 8);
    memcpy(d + 8, &parent, 8);
}
#define PUT(at, kind, value) do { kind v_ = (value); memcpy(d + (at), &v_, sizeof v_); } while (0)
#define TIMED(what) do { uint64_t t_ = now(); what; spent += now() - t_; calls++; } while (0)

static void *proxy(void *unused) {
    (void)unused;
    unsigned char d[112];
    for (int op = 0; op < ops; op++) {
        while (published <= op) sched_yield();
        for (int c = 0; c < channels; c++) {
            void *handle = NULL;
            uint64_t stamp = work[op * channels + c].stop;
            descr(d, 64, work[op * channels + c].task);
            d[24] = (unsigned char)c;
            PUT(32, uint64_t, work[op * channels + c].start);
            plug->start(context, &handle, d);
            plug->state(handle, 22, &stamp);
            plug->stop(handle);
        }
    }
    return NULL;
}

int main(int argc, char **argv) {
    if (argc < 5) return fprintf(stderr, "usage: nccl_player PLUGIN.so 4|5 OPS CHANNELS [cost]\n"), 2;
    version = atoi(argv[2]); ops = atoi(argv[3]); channels = atoi(argv[4]);
    char symbol[32];
    snprintf(symbol, sizeof symbol, "ncclProfiler_v%d", version);
    void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (!library || !(plug = dlsym(library, symbol))) return fprintf(stderr, "%s\n", dlerror()), 1;
    if (version == 4)
        ((int (*)(void **, int *, const char *, uint64_t, int, int, int, void *))plug->init)(
            &context, &mask, "played", 0xfeedbeef, 1, 2, 0, NULL);
    else
        ((int (*)(void **, uint64_t, int *, const char *, int, int, int, void *))plug->init)(
            &context, 0xfeedbeef, &mask, NULL, 1, 2, 0, NULL);
    work = calloc((size_t)(ops * channels), sizeof *work);
    pthread_t thread;
    pthread_create(&thread, NULL, proxy, NULL);
    unsigned char d[112];
    void *group_api = NULL, *coll_api = NULL;
    for (int op = 0; op < ops; op++) {
        void *group = NULL, *coll = NULL;
        int off = op % 97 == 96; /* a step with the API bits off: the stale CollApi handle stays */
        if (version >= 5 && !off) {
            descr(d, 256, NULL); PUT(28, int, 1);
            TIMED(plug->start(context, &group_api, d));
            TIMED(plug->state(group_api, 23, NULL));
            descr(d, 512, group_api);
            PUT(24, const char *, "AllReduce"); PUT(32, size_t, 1u << 20); PUT(40, const char *, "ncclFloat32");
            TIMED(plug->start(context, &coll_api, d));
            TIMED(plug->stop(coll_api)); /* and NCCL keeps the handle */
            TIMED(plug->state(group_api, 24, NULL));
        }
        descr(d, 1, NULL);
        TIMED(plug->start(context, &group, d));
        descr(d, 2, version == 4 ? group : coll_api);
        PUT(24, uint64_t, (uint64_t)(op - (op % 50 == 49))); /* a replay repeats the number */
        PUT(32, const char *, "AllReduce"); PUT(56, size_t, 1u << 20); PUT(72, const char *, "ncclFloat32");
        d[80] = (unsigned char)channels; d[81] = 16;
        PUT(88, const char *, "RING"); PUT(96, const char *, "SIMPLE");
        if (version >= 5) PUT(104, void *, group);
        TIMED(plug->start(context, &coll, d));
        TIMED(plug->stop(coll));
        TIMED(plug->stop(group));
        if (version >= 5 && !off) TIMED(plug->stop(group_api));
        uint64_t t = now() / 1024 * 1024;
        for (int c = 0; c < channels; c++) {
            work[op * channels + c].task = coll;
            work[op * channels + c].start = t + (uint64_t)c * 1024;
            work[op * channels + c].stop = op % 61 == 60 ? t - 4096 : t + 64 * 1024; /* stop before start */
        }
        published = op + 1;
    }
    pthread_join(thread, NULL);
    plug->finalize(context);
    if (argc > 5) printf("%.0f ns per callback over %lu callbacks (two clock reads of ours included)\n",
                         (double)spent / (double)calls, (unsigned long)calls);
    free(work);
    dlclose(library);
    return 0;
}
