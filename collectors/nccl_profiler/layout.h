/* What lies in the shared file rank-<rank>-<pid>-<start>.nccl, and how the plug-in's two sources meet.
 *
 * Every word has 64 bits in the machine's own byte order: writer and readers share the machine. Times are nanoseconds
 * of CLOCK_MONOTONIC; what the GPU stamped appears as durations alone. layout.py says the same in Python.
 */
#ifndef TRAINWARDEN_NCCL_LAYOUT_H
#define TRAINWARDEN_NCCL_LAYOUT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef _Atomic uint64_t word;

#define TW_MAGIC 0x31304c43434e5754ull /* "TWNCCL01" */
#define TW_ABI 1
#define TW_COMMS 256
#define TW_CALLS 8192
#define TW_NAME_WORDS 8

enum { /* kernel_mode: whether the device stamps calls */
    TW_NEVER = 0,
    TW_SAMPLED = 1,
    TW_ALWAYS = 2, /* asked for with an NCCL whose stamps must not be switched on and off */
};

struct tw_header {
    uint64_t magic; /* written last */
    uint64_t abi, pid, start_ticks, pid_namespace, interface, nccl_version, born_ns, kernel_mode, every;
    uint64_t spare[54];
    /* Written from outside: 1 + the number of the step in progress (0: not told), and the steps, from that one up to and
     * not with this one, of which every one is to be sampled. */
    word step, sample_until, sample_from;
    uint64_t spare_control[61];
    word calls; /* records of the ring claimed so far: number n lies in place n % TW_CALLS */
    uint64_t spare_calls[7];
    word kernels; /* kernel events so far */
    uint64_t spare_kernels[7];
    /* dropped: communicators or calls without a place. stale: handles of events that are gone. orphans: kernel events
     * without a call. foreign: events of a kind or type unknown. voided: stamps that cannot be. */
    word own_ns, dropped, stale, orphans, foreign, voided, captured;
    uint64_t spare_end[361];
};

enum { TW_UNTRUSTED = 1, TW_CAPTURED = 2, TW_CLOSED = 4 }; /* flags of a communicator */

struct tw_comm {
    word generation; /* 0: no communicator here (now); the same number stands at the end */
    word id, nodes, ranks, rank;
    word flags;
    /* Calls so far; started and finished are the newest stamped call of which the device has said so, and `stamped` the
     * newest that it was asked to stamp. moved_ns: when one of these last grew. */
    word enqueued, started, finished, stamped, moved_ns;
    word name[TW_NAME_WORDS];
    word born_ns;
    uint64_t spare[11];
    word generation_again;
};

enum { TW_VOID = 1 }; /* flags of a call */

/* One call of a sampled step. `what`: place of the communicator (16 bits), its generation (24), function (8),
 * channels (8), flags (8). `device`: kernels started (16), stopped (16), peer + 1 (32). */
struct tw_call {
    word serial; /* 0 while it is being written */
    word what, seq, bytes, step, enqueued_ns, device, device_ns;
};

struct tw_file {
    struct tw_header header;
    struct tw_comm comms[TW_COMMS];
    struct tw_call calls[TW_CALLS];
};

_Static_assert(sizeof(struct tw_header) == 4096, "a header is a page");
_Static_assert(sizeof(struct tw_comm) == 256, "a communicator is four lines");
_Static_assert(sizeof(struct tw_call) == 64, "a call is a line");
_Static_assert(sizeof(struct tw_file) <= 1 << 20, "a file is at most 1 MB");

typedef void (*tw_log)(int level, unsigned long flags, const char *file, int line, const char *format, ...);

/* The file of this process, made at the first call; NULL if it cannot be had. `fallback_rank` names the file where the
 * environment does not say the rank. Safe from several threads. */
struct tw_file *tw_open(int interface, int fallback_rank, tw_log log);
uint64_t tw_now(void);

#endif
