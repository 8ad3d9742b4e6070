/* What NCCL hands to a profiler plug-in, as far as it is read here: structures of our own with NCCL's offsets. */
#ifndef TRAINWARDEN_NCCL_INTERFACE_H
#define TRAINWARDEN_NCCL_INTERFACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { /* kinds of events, the bits of the mask */
    GROUP = 1,
    COLL = 2,
    P2P = 4,
    KERNEL_CH = 64,
    GROUP_API = 256,
    COLL_API = 512,
    P2P_API = 1024,
    KNOWN = 0xffff,
};

enum { KERNEL_CH_STOP = 22 }; /* the one state that is looked at */

struct coll { /* v4 and v5 */
    uint64_t seq;
    const char *func;
    const void *send, *receive;
    size_t count;
    int root;
    const char *datatype;
    uint8_t channels, warps;
};

struct p2p { /* v4 and v5 */
    const char *func;
    const void *buffer;
    const char *datatype;
    size_t count;
    int peer;
    uint8_t channels;
};

struct coll_v3 {
    const char *name;
    uint64_t comm;
    struct coll call;
};

struct p2p_v3 { /* ends with the peer */
    const char *name;
    uint64_t comm;
    const char *func;
    const void *buffer;
    const char *datatype;
    size_t count;
    int peer;
};

struct kernel_ch {
    uint8_t channel;
    uint64_t stamp;
};

struct group_api {
    bool captured;
    int depth;
};

struct coll_api {
    const char *func;
    size_t count;
    const char *datatype;
    int root;
    void *stream;
    bool captured;
};

struct p2p_api {
    const char *func;
    size_t count;
    const char *datatype;
    void *stream;
    bool captured;
};

struct event {
    union {
        uint8_t narrow; /* up to v4 */
        uint64_t wide;
    } type;
    void *parent;
    int rank;
    union {
        struct coll coll;
        struct p2p p2p;
        struct coll_v3 coll_v3;
        struct p2p_v3 p2p_v3;
        struct kernel_ch kernel;
        struct group_api group_api;
        struct coll_api coll_api;
        struct p2p_api p2p_api;
    };
};

#define AT(member, place) _Static_assert(offsetof(struct event, member) == (place), #member)
AT(parent, 8);
AT(rank, 16);
AT(coll.seq, 24);
AT(coll.func, 32);
AT(coll.count, 56);
AT(coll.root, 64);
AT(coll.datatype, 72);
AT(coll.channels, 80);
AT(p2p.func, 24);
AT(p2p.datatype, 40);
AT(p2p.count, 48);
AT(p2p.peer, 56);
AT(p2p.channels, 60);
AT(coll_v3.comm, 32);
AT(coll_v3.call.seq, 40);
AT(coll_v3.call.datatype, 88);
AT(p2p_v3.func, 40);
AT(p2p_v3.peer, 72);
AT(kernel.channel, 24);
AT(kernel.stamp, 32);
AT(group_api.captured, 24);
AT(coll_api.captured, 64);
AT(p2p_api.captured, 56);
#undef AT

typedef void (*logger)(int level, unsigned long flags, const char *file, int line, const char *format, ...);

#define FUNCTIONS(event_type)                                                                                          \
    int (*start)(void *context, void **handle, event_type *event);                                                     \
    int (*stop)(void *handle);                                                                                         \
    int (*state)(void *handle, int state, void *args);                                                                 \
    int (*finalize)(void *context)

struct profiler_v3 {
    const char *name;
    int (*init)(void **context, int *mask);
    FUNCTIONS(struct event);
};

struct profiler_v4 {
    const char *name;
    int (*init)(void **context, int *mask, const char *name, uint64_t id, int nodes, int ranks, int rank, logger log);
    FUNCTIONS(struct event);
};

struct profiler_v5 {
    const char *name;
    int (*init)(void **context, uint64_t id, int *mask, const char *name, int nodes, int ranks, int rank, logger log);
    FUNCTIONS(struct event);
};

#endif
