/* A function of taut in a shared library: what the library has, and what taut gives it.
 *
 * Licence: Apache-2.0. Plain C (C99) and C++; all numbers are in the order of bytes of the machine.
 *
 *     cc -O2 -shared -fPIC -o libmine.so mine.c
 *
 * A chain file names the library as a function:
 *
 *     [[function]]
 *     name = "plugin"
 *     file = "libmine.so"
 *     settings = "what taut_function_make gets"
 *
 * The library has the four functions at the end. taut makes one state for each worker, and calls it on the worker's
 * thread only; what several states share is the library's to guard. No function may throw, or end the thread.
 *
 * What is called for a batch, taut_function_process, stands in the way of all packets: it should not allocate, lock,
 * sleep, or call the system.
 */

#ifndef TAUT_FUNCTION_H
#define TAUT_FUNCTION_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Version of this interface. taut loads a library of the same version only. */
#define TAUT_FUNCTION_ABI 1u

/* What becomes of a packet. */
enum {
    /* It goes on to the next function, and then leaves. What packets have when they come. */
    TAUT_KEEP = 0,
    /* It is dropped, and counted. */
    TAUT_DROP = 1,
    /* It goes to the slow path, as one that is for an address of the port: a function of the chain that has such
     * addresses (host, route) may answer it; else it is dropped, and counted. */
    TAUT_PUNT = 2
};

/* The port that a packet leaves through unless it is told otherwise: the partner of the one it came in through. */
#define TAUT_USUAL_PORT 255u

/* A packet: the only part of it that a library may change are the bytes, and these fields. */
struct taut_packet {
    /* First byte of the frame, its destination MAC address. May be moved: back by `headroom` at most, which makes room
     * for a header in front, or forth, which takes one away. */
    uint8_t *data;
    /* Bytes of the frame, without frame check sequence; 1 at least. May be changed: `data` and `length` together stay
     * within headroom, frame and tailroom. */
    uint16_t length;
    /* Bytes before `data`, and behind the frame, that belong to the packet as well: 0 where it lies in a ring without
     * such room. What they hold means nothing. Changes here are not looked at. */
    uint16_t headroom;
    uint16_t tailroom;
    /* TAUT_KEEP, TAUT_DROP or TAUT_PUNT. */
    uint8_t verdict;
    /* TAUT_USUAL_PORT, or the number of the port that it is to leave through, from 0, in a chain whose file says
     * `sends = true`. */
    uint8_t port;
};

/* What all packets of a batch have in common. */
struct taut_batch {
    /* Time at which the worker began with this batch, on the processor's time-stamp counter. */
    uint64_t ticks;
    /* Ports are numbered from 0 in the order of the chain file: the one that the packets came in through, the one that
     * they leave through unless told otherwise, and how many there are. */
    uint32_t in_port;
    uint32_t out_port;
    uint32_t ports;
    /* 0 from the first port of a pair to the second, 1 back. */
    uint32_t direction;
};

/* What a state is made for. It is there for the length of the call of taut_function_make. */
struct taut_host {
    /* TAUT_FUNCTION_ABI of taut. */
    uint32_t abi;
    /* The number of the worker, from 0, and how many there are. */
    uint32_t worker;
    uint32_t workers;
    uint32_t reserved;
    /* How fast `ticks` of batches go. */
    double ticks_per_second;
    /* A counter that taut shows under this name (1 to 60 printable characters), with those of the chain's other
     * functions; those of one name are added up over all workers. The library adds to it whenever it likes, on the
     * worker's thread; it is there as long as the state. Never NULL: what is wrong with a name, or beyond 64 counters,
     * has taut refuse the state. */
    uint64_t *(*counter)(const struct taut_host *host, const char *name);
    /* Says in one line why there is no state; return NULL then. */
    void (*fail)(const struct taut_host *host, const char *text);
};

#if defined(__GNUC__)
#define TAUT_EXPORT __attribute__((visibility("default")))
#else
#define TAUT_EXPORT
#endif

/* TAUT_FUNCTION_ABI, as the library was built with it. Called before anything else. */
TAUT_EXPORT uint32_t taut_function_abi(void);

/* Makes a state from the settings of the chain file, a text of UTF-8 that is there for the call. NULL: there is none, and
 * `fail` was told why. */
TAUT_EXPORT void *taut_function_make(const char *settings, const struct taut_host *host);

/* Handles `count` packets (1 to 64), in order of arrival. Packets, and what is around them, are there for the call. */
TAUT_EXPORT void taut_function_process(void *state, struct taut_packet *packets, uint32_t count,
                                       const struct taut_batch *batch);

/* Takes a state away. */
TAUT_EXPORT void taut_function_free(void *state);

#ifdef __cplusplus
}
#endif

#endif
