/* NCCL's profiler plug-in: which calls were made on which communicator, and how long the device took over sampled ones.
 *
 * Callbacks come from the calling threads, NCCL's proxy threads and CUDA's host callbacks, late and twice too. So: no
 * lock, no allocation, nothing but success; contexts and handles are numbers (place and generation), looked up in
 * tables that are never freed, and the library stays loaded (-z nodelete), whoever closes it.
 */
#include "interface.h"
#include "layout.h"
#include "tables.h"

#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define HOT __attribute__((hot))
enum { WARM_UP = 16, COST_EVERY = 256 };
#define UNTOLD tw_handle(TW_GROUP, 0) /* a call that is stamped, and of which nothing is kept */
#define PLAN tw_handle(TW_GROUP, 1)

static struct tw_file *_Atomic shared;
#define file (atomic_load_explicit(&shared, memory_order_acquire))
static _Atomic(int *) mask_of_nccl; /* one for the process, read by NCCL whenever a call is made */
static _Atomic int mask_now, warm_left;
static _Atomic bool capturing; /* a graph, says the hook */

static inline uint64_t get(word *at) { return atomic_load_explicit(at, memory_order_relaxed); }
static inline void put(word *at, uint64_t value) { atomic_store_explicit(at, value, memory_order_relaxed); }
static inline uint64_t add(word *at, uint64_t by) { return atomic_fetch_add_explicit(at, by, memory_order_relaxed); }

/* Whether all ranks have the calls of step `number` stamped. */
static bool is_sampled(uint64_t number) {
    struct tw_header *header = &file->header;
    return number % header->every == 0 || (number >= get(&header->sample_from) && number < get(&header->sample_until));
}

static bool sampled(void) {
    uint64_t step = get(&file->header.step);
    return step && is_sampled(step - 1);
}

/* Tell NCCL whether the device is to stamp the calls that come. NCCL reads it before it tells of a call, so it is said
 * a step ahead: the first call of a step is the one in which the others wait. Once a graph holds NCCL nothing is
 * changed, whatever it was: counters of device and host would part, and NCCL would wait for ever. */
static void steer(void) {
    uint64_t mode = file->header.kernel_mode, step = get(&file->header.step);
    if (get(&file->header.captured)) return;
    bool on = mode == TW_ALWAYS;
    if (mode == TW_SAMPLED) {
        bool warm = atomic_load_explicit(&warm_left, memory_order_relaxed) > 0;
        on = warm || (step && (is_sampled(step) || is_sampled(step - 1)));
    }
    if (atomic_load_explicit(&capturing, memory_order_relaxed)) on = false;
    int wanted = COLL | P2P | (on ? KERNEL_CH : 0);
    if (wanted != atomic_load_explicit(&mask_now, memory_order_relaxed)) {
        int *mask = atomic_load_explicit(&mask_of_nccl, memory_order_relaxed);
        atomic_store_explicit(&mask_now, wanted, memory_order_relaxed);
        if (mask) __atomic_store_n(mask, wanted, __ATOMIC_RELAXED);
    }
}

/* A graph of CUDA's holds NCCL: from now on stamps are those of earlier calls, or there are none. */
static void captured(struct tw_comm *comm) {
    if (comm) atomic_fetch_or_explicit(&comm->flags, TW_CAPTURED, memory_order_relaxed);
    if (!get(&file->header.captured)) put(&file->header.captured, 1);
}

/* -- calls that are made */

struct made {
    uint64_t seq, bytes, asked_ns; /* when it was asked for, where that is known */
    int function, peer, channels;
};

/* The next record of the ring, for a call that the device was asked to stamp; its number. */
static uint64_t record(uint32_t place, struct tw_comm *comm, const struct made *made, uint64_t now, uint64_t ordinal) {
    uint64_t serial = atomic_fetch_add(&file->header.calls, 1) + 1;
    struct tw_call *call = &file->calls[serial % TW_CALLS];
    put(&call->serial, 0);
    atomic_thread_fence(memory_order_release);
    put(&call->what, place | (get(&comm->generation) & 0xffffff) << 16 | (uint64_t)made->function << 40 |
                         (uint64_t)(made->channels & 0xff) << 48);
    put(&call->seq, made->seq);
    put(&call->bytes, made->bytes);
    put(&call->step, get(&file->header.step));
    put(&call->enqueued_ns, made->asked_ns && made->asked_ns < now ? made->asked_ns : now);
    put(&call->device, (uint64_t)(uint32_t)(made->peer + 1) << 32);
    put(&call->device_ns, 0);
    put(&tw_ordinals[serial % TW_CALLS], ordinal);
    put(&comm->stamped, ordinal);
    atomic_store_explicit(&call->serial, serial, memory_order_release);
    return serial;
}

HOT static void enqueued(uint32_t place, struct made made, void **handle) {
    struct tw_comm *comm = &file->comms[place];
    uint64_t now = tw_now(), ordinal = add(&comm->enqueued, 1) + 1;
    if (made.function >= TW_SEND) {
        made.seq = tw_next_of_peer(place, get(&comm->generation), made.function, made.peer);
        if (!made.seq--) add(&file->header.dropped, 1);
    }
    put(&comm->moved_ns, now);
    bool warm = atomic_load_explicit(&warm_left, memory_order_relaxed) > 0;
    if (warm) atomic_fetch_sub_explicit(&warm_left, 1, memory_order_relaxed);
    if (atomic_load_explicit(&mask_now, memory_order_relaxed) & KERNEL_CH) {
        bool told = (warm && file->header.kernel_mode == TW_SAMPLED) || sampled();
        told = told && !get(&file->header.captured) && made.function && made.seq != UINT64_MAX;
        *handle = told ? tw_handle(TW_CALL, record(place, comm, &made, now, ordinal)) : UNTOLD;
    }
    if (ordinal % COST_EVERY == 0) add(&file->header.own_ns, (tw_now() - now) * COST_EVERY);
}

/* -- what the device says */

static void kernel_started(struct tw_comm *comm, const struct event *event, void **handle) {
    uint64_t serial = tw_serial(event->parent, TW_CALL);
    if (event->parent == UNTOLD) return;
    struct tw_call *call = &file->calls[serial % TW_CALLS];
    if (!event->parent) {
        add(&file->header.orphans, 1);
        return;
    }
    /* A record that is soon to be overwritten is left alone: nothing may be written into its successor. */
    if (!serial || atomic_load_explicit(&call->serial, memory_order_acquire) != serial ||
        serial + TW_CALLS / 2 < get(&file->header.calls)) {
        add(&file->header.stale, 1);
        return;
    }
    if (&file->comms[get(&call->what) & (TW_COMMS - 1)] != comm || get(&comm->flags) & TW_UNTRUSTED) return;
    uint64_t number = add(&file->header.kernels, 1) + 1;
    tw_kernel_begin(number, serial, event->kernel.stamp, event->kernel.channel);
    *handle = tw_handle(TW_KERNEL, number);
    add(&call->device, 1);
    tw_raise(&comm->started, get(&tw_ordinals[serial % TW_CALLS]));
    put(&comm->moved_ns, tw_now());
}

static void kernel_stopped(void *handle, uint64_t stop) {
    struct tw_kernel kernel;
    if (!tw_kernel_end(tw_serial(handle, TW_KERNEL), &kernel)) {
        add(&file->header.stale, 1);
        return;
    }
    struct tw_call *call = &file->calls[kernel.call % TW_CALLS];
    if (atomic_load_explicit(&call->serial, memory_order_acquire) != kernel.call ||
        kernel.call + TW_CALLS / 2 < get(&file->header.calls)) {
        add(&file->header.stale, 1);
        return;
    }
    uint64_t what = get(&call->what), now = tw_now();
    uint32_t place = what & (TW_COMMS - 1);
    struct tw_comm *comm = &file->comms[place];
    if ((get(&comm->generation) & 0xffffff) != (what >> 16 & 0xffffff)) return; /* its place is another's by now */
    bool alone = (what >> 40 & 0xff) < TW_SEND; /* sends and receives share a channel's stamps */
    switch (tw_judge(place, &kernel, stop, get(&call->enqueued_ns), now, alone)) {
    case TW_OUT_OF_STEP:
        atomic_fetch_or_explicit(&comm->flags, TW_UNTRUSTED, memory_order_relaxed);
        /* fall through */
    case TW_CANNOT_BE:
        add(&file->header.voided, 1);
        atomic_fetch_or_explicit(&call->what, (uint64_t)TW_VOID << 56, memory_order_relaxed);
        break;
    default:
        tw_raise(&call->device_ns, stop - kernel.start);
    }
    uint64_t device = add(&call->device, 1 << 16) + (1 << 16);
    if ((device >> 16 & 0xffff) >= (what >> 48 & 0xff) && (device >> 16 & 0xffff) >= (device & 0xffff)) {
        tw_raise(&comm->finished, get(&tw_ordinals[kernel.call % TW_CALLS]));
    }
    put(&comm->moved_ns, now);
}

/* -- callbacks */

static int begin(int interface, void **context, int *mask, const struct tw_named *named, logger log) {
    if (context) *context = NULL;
    if (!context || !mask) return 0;
    struct tw_file *made = tw_open(interface, named->rank, log);
    if (!made) {
        __atomic_store_n(mask, 0, __ATOMIC_RELAXED);
        return 0;
    }
    atomic_store_explicit(&shared, made, memory_order_release);
    atomic_store_explicit(&mask_of_nccl, mask, memory_order_relaxed);
    if (interface == 3) {
        *context = tw_handle(TW_CONTEXT, 0); /* only its calls tell the communicator */
    } else if (named->ranks > 1) {           /* alone, it makes no calls */
        uint32_t place = tw_comm_begin(file, named);
        if (place < TW_COMMS) *context = tw_handle(TW_CONTEXT, (get(&file->comms[place].generation) << 16) + place + 1);
        else add(&file->header.dropped, 1);
        atomic_store_explicit(&warm_left, WARM_UP, memory_order_relaxed);
    }
    steer();
    __atomic_store_n(mask, atomic_load_explicit(&mask_now, memory_order_relaxed), __ATOMIC_RELAXED);
    return 0;
}

/* The communicator's place; TW_COMMS if it is gone. */
static uint32_t place_of(void *context) {
    uint64_t number = tw_serial(context, TW_CONTEXT);
    uint32_t place = (number & 0xffff) - 1;
    return number && tw_comm_lives(place, number >> 16) ? place : TW_COMMS;
}

/* A call of a kind or type that is not known counts as one, and no more is told of it. */
static void made_known(uint32_t place, struct made made, const char *datatype, void **handle) {
    uint64_t size = tw_size_of(datatype);
    made.bytes *= size;
    if (!made.function || !size) {
        add(&file->header.foreign, 1);
        made.function = 0;
    }
    enqueued(place, made, handle);
}

static void coll(uint32_t place, const struct coll *call, const void *parent, void **handle) {
    int function = tw_function(call->func);
    if (function >= TW_SEND) function = 0;
    struct made made = {call->seq, call->count, tw_serial(parent, TW_ASKED), function, -1, call->channels};
    made_known(place, made, call->datatype, handle);
}

static void p2p(uint32_t place, const struct p2p *call, int channels, const void *parent, void **handle) {
    int function = tw_function(call->func);
    if (function < TW_SEND) function = 0;
    struct made made = {0, call->count, tw_serial(parent, TW_ASKED), function, call->peer, channels};
    made_known(place, made, call->datatype, handle);
}

/* NCCL tells of the call itself after its launch: what the device does is compared with this time. */
static void asked(struct tw_comm *comm, bool in_graph, void **handle) {
    if (in_graph) captured(comm);
    else if (atomic_load_explicit(&mask_now, memory_order_relaxed) & KERNEL_CH) *handle = tw_handle(TW_ASKED, tw_now());
}

static int start_v3(void *context, void **handle, struct event *event) {
    if (!handle) return 0;
    *handle = NULL;
    if (!file || !event || context != tw_handle(TW_CONTEXT, 0)) return 0;
    int type = event->type.narrow;
    if (type == GROUP) *handle = tw_handle(TW_GROUP, 0); /* without, 2.26 and 2.27 tell of no call */
    else if (type == COLL || type == P2P) {
        const char *name = type == COLL ? event->coll_v3.name : event->p2p_v3.name;
        uint64_t id = type == COLL ? event->coll_v3.comm : event->p2p_v3.comm;
        uint32_t place = tw_comm_of(file, &(struct tw_named){id, name, 0, 0, event->rank});
        if (place >= TW_COMMS) add(&file->header.dropped, 1);
        else if (type == COLL) coll(place, &event->coll_v3.call, NULL, handle);
        else {
            struct p2p call;
            memcpy(&call, &event->p2p_v3.func, offsetof(struct p2p, channels));
            p2p(place, &call, 0, NULL, handle);
        }
    } else if (!type || type & ~KNOWN) add(&file->header.foreign, 1);
    return 0;
}

HOT static int start(void *context, void **handle, const struct event *event, uint64_t type) {
    if (!handle) return 0;
    *handle = NULL;
    if (!file || !event) return 0;
    if (type == GROUP) {
        *handle = PLAN;
        return 0;
    }
    uint32_t place = place_of(context);
    if (place >= TW_COMMS) {
        if (tw_serial(context, TW_CONTEXT)) add(&file->header.stale, 1);
        return 0;
    }
    struct tw_comm *comm = &file->comms[place];
    switch (type) {
    case COLL: coll(place, &event->coll, event->parent, handle); break;
    case P2P: p2p(place, &event->p2p, event->p2p.channels, event->parent, handle); break;
    case KERNEL_CH: kernel_started(comm, event, handle); break;
    case GROUP_API: if (event->group_api.captured) captured(comm); break;
    case COLL_API: asked(comm, event->coll_api.captured, handle); break;
    case P2P_API: asked(comm, event->p2p_api.captured, handle); break;
    default:
        if (!type || type & ~(uint64_t)KNOWN) add(&file->header.foreign, 1);
    }
    return 0;
}

static int start_v4(void *context, void **handle, struct event *event) {
    return start(context, handle, event, event ? event->type.narrow : 0);
}

static int start_v5(void *context, void **handle, struct event *event) {
    return start(context, handle, event, event ? event->type.wide : 0);
}

static int stop(void *handle) {
    if (!file) return 0;
    if (handle == PLAN) steer(); /* all calls of this launch have been told */
    else if (!tw_handle_sound(handle)) add(&file->header.stale, 1);
    return 0;
}

static int state(void *handle, int reached, void *args) {
    uint64_t stop_ns;
    if (!file || reached != KERNEL_CH_STOP || !args) return 0;
    memcpy(&stop_ns, args, sizeof stop_ns);
    kernel_stopped(handle, stop_ns);
    return 0;
}

static int finalize(void *context) {
    if (!file || file->header.pid != (uint64_t)getpid()) return 0; /* a fork ends no communicator of the rank's */
    uint32_t place = place_of(context);
    if (place < TW_COMMS) tw_comm_end(file, place);
    return 0;
}

static int init_v3(void **context, int *mask) {
    return begin(3, context, mask, &(struct tw_named){.rank = -1}, NULL);
}

static int init_v4(void **context, int *mask, const char *name, uint64_t id, int nodes, int ranks, int rank, logger log) {
    return begin(4, context, mask, &(struct tw_named){id, name, nodes, ranks, rank}, log);
}

static int init_v5(void **context, uint64_t id, int *mask, const char *name, int nodes, int ranks, int rank, logger log) {
    return begin(5, context, mask, &(struct tw_named){id, name, nodes, ranks, rank}, log);
}

/* A graph is captured from now on, or no more: the hook says so before CUDA is asked. Without stamps nothing can part; they
 * come back where the graph holds none of NCCL's calls, which 2.27 does not tell. */
EXPORT void trainwarden_nccl_capture(int open) {
    atomic_store(&capturing, open != 0);
    if (!file) return;
    steer();
    if (open && (file->header.interface == 4 || file->header.kernel_mode == TW_ALWAYS)) captured(NULL);
}

#define NAME "trainwarden"
EXPORT const struct profiler_v3 ncclProfiler_v3 = {NAME, init_v3, start_v3, stop, state, finalize};
EXPORT const struct profiler_v4 ncclProfiler_v4 = {NAME, init_v4, start_v4, stop, state, finalize};
EXPORT const struct profiler_v5 ncclProfiler_v5 = {NAME, init_v5, start_v5, stop, state, finalize};
