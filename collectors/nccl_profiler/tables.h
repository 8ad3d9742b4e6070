/* What the plug-in keeps to itself: which handles are whose, and whether stamps can be. */
#ifndef TRAINWARDEN_NCCL_TABLES_H
#define TRAINWARDEN_NCCL_TABLES_H

#include "layout.h"

enum { TW_CONTEXT = 1, TW_GROUP, TW_CALL, TW_KERNEL, TW_ASKED }; /* what a handle names; the last: a time */
enum { TW_SEND = 16, TW_RECEIVE, TW_SEND_RECEIVE };    /* functions from here on have a peer */
enum { TW_FINE, TW_CANNOT_BE, TW_OUT_OF_STEP };        /* what is to be said of stamps */

struct tw_named { /* what NCCL says of a communicator */
    uint64_t id;
    const char *name;
    int nodes, ranks, rank;
};

struct tw_kernel {
    uint64_t call, start;
    uint32_t channel;
};

extern word tw_ordinals[TW_CALLS]; /* which call of its communicator a record is of */

void *tw_handle(int kind, uint64_t serial);
uint64_t tw_serial(const void *handle, int kind); /* 0: another kind of handle */
bool tw_handle_sound(const void *handle);

int tw_function(const char *name);        /* 0: unknown */
uint64_t tw_size_of(const char *datatype); /* 0: unknown */
void tw_raise(word *at, uint64_t value);  /* to at least `value` */

uint32_t tw_comm_begin(struct tw_file *file, const struct tw_named *named); /* TW_COMMS: no place */
uint32_t tw_comm_of(struct tw_file *file, const struct tw_named *named);    /* by its id, made at its first call */
bool tw_comm_lives(uint32_t place, uint64_t generation);
void tw_comm_end(struct tw_file *file, uint32_t place);

/* How manieth call of this kind with this peer, from 1; 0: no place. */
uint64_t tw_next_of_peer(uint32_t place, uint64_t generation, int function, int peer);

void tw_kernel_begin(uint64_t number, uint64_t call, uint64_t stamp, uint32_t channel);
bool tw_kernel_end(uint64_t number, struct tw_kernel *kernel); /* false: it is gone */
int tw_judge(uint32_t place, const struct tw_kernel *kernel, uint64_t stop, uint64_t enqueued, uint64_t now, bool alone);

#endif
