/* The interface between taut and a function in a shared library.
 *
 * Licence: Apache-2.0. Plain C (C99) and C++; all numbers are in the machine's byte order.
 *
 *     cc -O2 -shared -fPIC -o libmine.so mine.c
 *
 * A chain file names the library as a function:
 *
 *     [[function]]
 *     name = "plugin"
 *     file = "libmine.so"
 *     settings = "the text for taut_function_make"
 *
 * The library defines the four functions at the end. taut makes one state for each worker, and uses it on the worker's
 * thread only; the library has to protect data that several states share. No function may throw, or end the thread.
 *
 * taut_function_process is called for each batch and delays all packets: it should not allocate, lock, sleep, or make
 * system calls.
 */

#ifndef TAUT_FUNCTION_H
#define TAUT_FUNCTION_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this interface. taut only loads libraries of the same version. */
#define TAUT_FUNCTION_ABI 1u

/* The verdict on a packet. */
enum {
    /* The packet continues to the next function, and finally leaves. Packets have this verdict when they arrive. */
    TAUT_KEEP = 0,
    /* The packet is dropped and counted. */
    TAUT_DROP = 1,
    /* The packet goes to the slow path, like one that is addressed to the port. A function of the chain with such
     * addresses (host, route) may answer it; otherwise it is dropped and counted. */
    TAUT_PUNT = 2
};

/* The default egress port of a packet: the partner of its ingress port. */
#define TAUT_USUAL_PORT 255u

/* A packet. A library may change only its bytes, and those fields whose comments allow it. */
struct taut_packet {
    /* The first byte of the frame, which is the first byte of its destination MAC address. May be changed: moved back
     * by at most `headroom` to make space for a header, or forward to remove one. */
    uint8_t *data;
    /* The number of bytes of the frame without frame check sequence, at least 1. May be changed: `data` and `length`
     * together have to stay within headroom, frame and tailroom. */
    uint16_t length;
    /* The number of bytes before `data` and after the frame that also belong to the packet; 0 if it is in a ring
     * without such space. Their contents are undefined. Changes of these two fields are ignored. */
    uint16_t headroom;
    uint16_t tailroom;
    /* TAUT_KEEP, TAUT_DROP or TAUT_PUNT. May be changed. */
    uint8_t verdict;
    /* The egress port: TAUT_USUAL_PORT or a port number from 0. May be changed in a chain with `sends = true` in its
     * file. */
    uint8_t port;
};

/* The common data of all packets of a batch. */
struct taut_batch {
    /* The time at which the worker began with this batch, in ticks of the processor's time-stamp counter. */
    uint64_t ticks;
    /* The ingress port, the default egress port, and the number of ports. Ports are numbered from 0 in the order of the
     * chain file. */
    uint32_t in_port;
    uint32_t out_port;
    uint32_t ports;
    /* The direction: 0 from the first port of a pair to the second, 1 back. */
    uint32_t direction;
};

/* The environment of a new state. It is valid during the call of taut_function_make. */
struct taut_host {
    /* The TAUT_FUNCTION_ABI of taut. */
    uint32_t abi;
    /* The number of the worker, from 0, and the number of workers. */
    uint32_t worker;
    uint32_t workers;
    uint32_t reserved;
    /* The rate of `ticks` of batches. */
    double ticks_per_second;
    /* Returns a counter that taut shows under this name (1 to 60 printable characters), with those of the chain's other
     * functions. Counters of the same name are summed over all workers. The library may add to it at any time on the
     * worker's thread; it is valid as long as the state. Never NULL: after an invalid name, or more than 64 counters,
     * taut refuses the state. */
    uint64_t *(*counter)(const struct taut_host *host, const char *name);
    /* Reports in one line why there is no state; return NULL then. */
    void (*fail)(const struct taut_host *host, const char *text);
};

#if defined(__GNUC__)
#define TAUT_EXPORT __attribute__((visibility("default")))
#else
#define TAUT_EXPORT
#endif

/* Returns the TAUT_FUNCTION_ABI that the library was built with. Called before any other function. */
TAUT_EXPORT uint32_t taut_function_abi(void);

/* Makes a state from the settings of the chain file, UTF-8 text that is valid during the call. Returns NULL if there is
 * no state, after reporting the reason by `fail`. */
TAUT_EXPORT void *taut_function_make(const char *settings, const struct taut_host *host);

/* Processes `count` packets (1 to 64) in order of arrival. All pointers except `state` are valid during the call
 * only. */
TAUT_EXPORT void taut_function_process(void *state, struct taut_packet *packets, uint32_t count,
                                       const struct taut_batch *batch);

/* Frees a state. */
TAUT_EXPORT void taut_function_free(void *state);

#ifdef __cplusplus
}
#endif

#endif
