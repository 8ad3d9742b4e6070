/* Tables of fixed size. A handle is a number: what it named may be gone, and then it names nothing. */
#include "tables.h"

#include <string.h>

#define KERNELS 4096
#define CHANNELS 64
#define PEERS 4096
#define PROBES 32
#define TICK_NS 1024             /* the GPU's clock steps by so much */
#define GRAIN 2                  /* of them */
#define SLACK_NS 1000000         /* 2.27 tells of a call after its launch, by a thread that may be held up */
#define DRIFT 5000               /* one part of that, between the clocks of GPU and host */
#define SAME_BATCH 16            /* ticks: calls of one launch begin together */
#define LONGEST_NS 3600000000000 /* of a kernel */
#define SECOND_CHANCES 3
#define MOST_BYTES 1000000 /* of a rank, file and tables */

struct slot {
    word serial, call, start; /* `call` is its number (56 bits) and the channel (8) */
};

struct judged { /* of one communicator, by the threads that bring its stamps */
    _Atomic int64_t offset; /* host time less GPU time is at most this */
    word offset_at, failures;
    word newest[CHANNELS]; /* 0, or the ticks at which the call before began (32 bits) and ended (32) */
};

struct peer {
    word key, count;
};

word tw_ordinals[TW_CALLS];
static struct slot kernels[KERNELS];
static struct judged judged[TW_COMMS];
static struct peer peers[PEERS];
static _Atomic bool taken[TW_COMMS];
static word generations, next_place, alive[TW_COMMS]; /* generation of the one that lives in a place */
static _Atomic uint32_t hints[TW_COMMS];
_Static_assert(sizeof(struct tw_file) + sizeof tw_ordinals + sizeof kernels + sizeof judged + sizeof peers +
                       sizeof taken + sizeof alive + sizeof hints <= MOST_BYTES,
               "a rank pays at most 1 MB");

static uint64_t get(word *at) { return atomic_load_explicit(at, memory_order_relaxed); }
static void put(word *at, uint64_t value) { atomic_store_explicit(at, value, memory_order_relaxed); }

void *tw_handle(int kind, uint64_t serial) { return (void *)(uintptr_t)(serial << 3 | (uint64_t)kind); }

uint64_t tw_serial(const void *handle, int kind) {
    uint64_t number = (uintptr_t)handle;
    return (int)(number & 7) == kind ? number >> 3 : 0;
}

bool tw_handle_sound(const void *handle) {
    int kind = (uintptr_t)handle & 7;
    return kind >= TW_GROUP && kind <= TW_ASKED;
}

void tw_raise(word *at, uint64_t value) {
    uint64_t now = get(at);
    while (now < value && !atomic_compare_exchange_weak(at, &now, value)) continue;
}

/* -- words of NCCL's */

int tw_function(const char *name) {
    static const struct {
        const char *name;
        int number;
    } known[] = {
        {"AllReduce", 1}, {"AllGather", 2}, {"ReduceScatter", 3}, {"Broadcast", 4}, {"Reduce", 5}, {"AlltoAll", 6},
        {"Gather", 7},    {"Scatter", 8},   {"AllGatherV", 9},    {"Send", TW_SEND}, {"Recv", TW_RECEIVE},
        {"SendRecv", TW_SEND_RECEIVE},
    };
    if (!name) return 0;
    for (unsigned i = 0; i < sizeof known / sizeof *known; i++) {
        if (*name == *known[i].name && !strcmp(name, known[i].name)) return known[i].number;
    }
    return 0;
}

uint64_t tw_size_of(const char *datatype) {
    if (!datatype || strncmp(datatype, "nccl", 4)) return 0;
    for (const char *at = datatype + 4; *at; at++) {
        switch (*at) {
        case '8': return 1;
        case '1': return 2;
        case '3': return 4;
        case '6': return 8;
        default: break;
        }
    }
    return 0;
}

/* -- communicators */

uint32_t tw_comm_begin(struct tw_file *file, const struct tw_named *named) {
    for (int tries = 0; tries < TW_COMMS; tries++) {
        uint32_t place = atomic_fetch_add(&next_place, 1) % TW_COMMS;
        bool free = false;
        if (!atomic_compare_exchange_strong(&taken[place], &free, true)) continue;
        struct tw_comm *comm = &file->comms[place];
        uint64_t generation = atomic_fetch_add(&generations, 1) + 1;
        put(&comm->generation, 0);
        atomic_thread_fence(memory_order_release);
        put(&comm->generation_again, 0);
        char name[8 * TW_NAME_WORDS] = "";
        for (unsigned i = 0; named->name && named->name[i] && i < sizeof name - 1; i++) name[i] = named->name[i];
        for (int i = 0; i < TW_NAME_WORDS; i++) {
            uint64_t part;
            memcpy(&part, name + 8 * i, 8);
            put(&comm->name[i], part);
        }
        word *fresh[] = {&comm->flags, &comm->enqueued, &comm->started, &comm->finished, &comm->stamped,
                         &comm->moved_ns};
        for (unsigned i = 0; i < sizeof fresh / sizeof *fresh; i++) put(fresh[i], 0);
        put(&comm->id, named->id);
        put(&comm->nodes, named->nodes > 0 ? (uint64_t)named->nodes : 0);
        put(&comm->ranks, named->ranks > 0 ? (uint64_t)named->ranks : 0);
        put(&comm->rank, named->rank > 0 ? (uint64_t)named->rank : 0);
        put(&comm->born_ns, tw_now());
        struct judged *of = &judged[place];
        put(&of->offset_at, 0);
        put(&of->failures, 0);
        for (int i = 0; i < CHANNELS; i++) put(&of->newest[i], 0);
        put(&alive[place], generation);
        put(&comm->generation_again, generation);
        atomic_store_explicit(&comm->generation, generation, memory_order_release);
        return place;
    }
    return TW_COMMS;
}

uint32_t tw_comm_of(struct tw_file *file, const struct tw_named *named) {
    uint32_t hint = atomic_load_explicit(&hints[named->id % TW_COMMS], memory_order_relaxed);
    for (uint32_t i = 0; i <= TW_COMMS; i++) { /* the hint, then all */
        uint32_t place = i ? i - 1 : hint;
        if (get(&alive[place]) && get(&file->comms[place].id) == named->id) {
            atomic_store_explicit(&hints[named->id % TW_COMMS], place, memory_order_relaxed);
            return place;
        }
    }
    return tw_comm_begin(file, named);
}

bool tw_comm_lives(uint32_t place, uint64_t generation) {
    return place < TW_COMMS && generation && get(&alive[place]) == generation;
}

void tw_comm_end(struct tw_file *file, uint32_t place) {
    atomic_fetch_or_explicit(&file->comms[place].flags, TW_CLOSED, memory_order_relaxed);
    put(&alive[place], 0);
    atomic_store(&taken[place], false);
}

/* -- sends and receives: NCCL does not number them */

static uint64_t key_of(uint32_t place, uint64_t generation, int function, int peer) {
    return (uint64_t)1 << 63 | (generation & 0xffffff) << 34 | (uint64_t)place << 26 | (uint64_t)(function & 3) << 24 |
           ((uint32_t)peer & 0xffffff);
}

static bool is_dead(uint64_t key) {
    return (get(&alive[key >> 26 & 0xff]) & 0xffffff) != (key >> 34 & 0xffffff);
}

uint64_t tw_next_of_peer(uint32_t place, uint64_t generation, int function, int peer) {
    uint64_t key = key_of(place, generation, function, peer);
    uint64_t at = key * 0x9e3779b97f4a7c15u >> 52;
    for (int i = 0; i < PROBES; i++) {
        struct peer *entry = &peers[(at + (uint64_t)i) % PEERS];
        uint64_t found = get(&entry->key);
        if (found == key) return atomic_fetch_add_explicit(&entry->count, 1, memory_order_relaxed) + 1;
    }
    for (int i = 0; i < PROBES; i++) { /* a free place, or that of a communicator that is gone */
        struct peer *entry = &peers[(at + (uint64_t)i) % PEERS];
        uint64_t found = get(&entry->key);
        if ((!found || is_dead(found)) && atomic_compare_exchange_strong(&entry->key, &found, key)) {
            put(&entry->count, 1);
            return 1;
        }
    }
    return 0;
}

/* -- kernels */

void tw_kernel_begin(uint64_t number, uint64_t call, uint64_t stamp, uint32_t channel) {
    struct slot *slot = &kernels[number % KERNELS];
    put(&slot->serial, 0);
    atomic_thread_fence(memory_order_release);
    put(&slot->call, call << 8 | (channel & 0xff));
    put(&slot->start, stamp);
    atomic_store_explicit(&slot->serial, number, memory_order_release);
}

bool tw_kernel_end(uint64_t number, struct tw_kernel *kernel) {
    struct slot *slot = &kernels[number % KERNELS];
    if (!number || atomic_load_explicit(&slot->serial, memory_order_acquire) != number) return false;
    uint64_t call = get(&slot->call);
    *kernel = (struct tw_kernel){call >> 8, get(&slot->start), (uint32_t)(call & 0xff)};
    return atomic_compare_exchange_strong(&slot->serial, &number, 0);
}

/* Stamps that go out of step are those of earlier calls: they lie before the call was made. What the clocks of GPU and
 * host differ by is known from above, as nobody hears of a stop before it is. */
static bool before_its_call(struct judged *of, const struct tw_kernel *kernel, uint64_t stop, uint64_t call, uint64_t now) {
    int64_t bound = (int64_t)(now - stop);
    uint64_t at = get(&of->offset_at);
    if (at) {
        int64_t known = atomic_load_explicit(&of->offset, memory_order_relaxed);
        known += now > at ? (int64_t)((now - at) / DRIFT) : 0;
        if ((int64_t)kernel->start + known + SLACK_NS < (int64_t)call) return true;
        if (bound >= known) return false;
    }
    atomic_store_explicit(&of->offset, bound, memory_order_relaxed);
    put(&of->offset_at, now);
    return false;
}

/* Ticks of 32 bits come round after 73 minutes; what lies up to half of that apart is told in its order. */
static bool overlaps(struct judged *of, const struct tw_kernel *kernel, uint64_t stop) {
    uint32_t start = (uint32_t)(kernel->start / TICK_NS);
    uint64_t now = (uint64_t)start << 32 | (uint32_t)(stop / TICK_NS);
    uint64_t before = atomic_exchange_explicit(&of->newest[kernel->channel % CHANNELS], now, memory_order_relaxed);
    uint32_t started = (uint32_t)(before >> 32), stopped = (uint32_t)before;
    return before && (int32_t)(start - started) > SAME_BATCH && (int32_t)(stopped - start) > GRAIN;
}

int tw_judge(uint32_t place, const struct tw_kernel *kernel, uint64_t stop, uint64_t enqueued, uint64_t now, bool alone) {
    struct judged *of = &judged[place];
    bool wrong = stop < kernel->start || stop - kernel->start > LONGEST_NS ||
                 before_its_call(of, kernel, stop, enqueued, now) || (alone && overlaps(of, kernel, stop));
    if (!wrong) {
        put(&of->failures, 0);
        return TW_FINE;
    }
    uint64_t failures = atomic_fetch_add_explicit(&of->failures, 1, memory_order_relaxed) + 1;
    return failures >= SECOND_CHANCES ? TW_OUT_OF_STEP : TW_CANNOT_BE;
}
