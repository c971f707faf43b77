/* The deadline transport of taut: messages that arrive in time and in order, or not at all.
 *
 * Licence: Apache-2.0. Plain C (C99) and C++; all numbers are in the order of bytes of the machine.
 *
 *     cc -O2 -o mine mine.c -ltaut_deadline
 *
 * An endpoint is one side of a connection. It reads no clock and no socket: you tell it what time it is and what has come, and
 * ask it what to send, what to deliver, and when to be asked again. So it goes with any loop and any way to send datagrams:
 *
 *     for (;;) {
 *         while ((bytes = taut_deadline_transmit(endpoint, now(), packet)) > 0)
 *             send(socket, packet, bytes, 0);
 *         while ((bytes = taut_deadline_deliver(endpoint, now(), message, sizeof message)) >= 0)
 *             use(message, bytes);
 *         wait until taut_deadline_wake(endpoint, now()), or a packet is there;
 *         while ((bytes = recv(socket, packet, sizeof packet, MSG_DONTWAIT)) > 0)
 *             taut_deadline_receive(endpoint, now(), packet, bytes);
 *     }
 *
 * Times are ns of a clock that is never set, such as CLOCK_MONOTONIC. Nothing blocks, allocates after the start, or calls the
 * system. An endpoint belongs to one thread at a time. No pointer may be null, unless it says so.
 */

#ifndef TAUT_DEADLINE_H
#define TAUT_DEADLINE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Version of this interface; taut_deadline_abi says that of the library. */
#define TAUT_DEADLINE_ABI 1u

/* Bytes of a datagram at most. */
#define TAUT_DEADLINE_DATAGRAM 1472u

/* What is asked of a connection. Both sides have settings of their own for what they send. */
struct taut_deadline_settings {
    /* Time from handing a message over until it has to be delivered, 10 us to 4 s. */
    uint64_t target_ns;
    /* A message is delivered when so much of its time is left at most: a short window makes delays even, one as long as the
     * target makes them short. */
    uint64_t window_ns;
    /* Repairs sent beforehand for each message: 0 for none; less for as many as losses ask for. */
    double redundancy;
    /* Packets after which the receiver answers, unless it has something to send anyhow. */
    uint32_t feedback_every;
    /* Bytes of a message at most. */
    uint32_t message_bytes;
    /* Messages that a side keeps at a time, 16 to 65536. */
    uint32_t kept;
    /* The clocks of both sides differ by so much at most, as 0 on one machine; UINT64_MAX if nothing is known of it. */
    uint64_t clock_error_ns;
    /* Share of the messages that has to come in time; you are told when fewer do. */
    double in_time;
    /* Silence after which the other side is taken for gone. */
    uint64_t silence_ns;
    /* Key of 16 to 64 bytes that both sides share, so that nobody else is listened to; null and 0 for none. */
    const uint8_t *key;
    size_t key_bytes;
};

/* What you are told. */
enum {
    /* The other side is there: `time_ns` is the round trip of its first answer. */
    TAUT_DEADLINE_CONNECTED = 1,
    /* Fewer messages come in time than was asked for, and as many again: `share` is that of the latest. */
    TAUT_DEADLINE_OUT_OF_REACH = 2,
    TAUT_DEADLINE_IN_REACH = 3,
    /* The other side has said farewell; has been silent for too long; speaks another version (`share` says which). */
    TAUT_DEADLINE_LEFT = 4,
    TAUT_DEADLINE_SILENT = 5,
    TAUT_DEADLINE_REFUSED = 6
};

struct taut_deadline_notice {
    uint32_t kind;
    double share;
    uint64_t time_ns;
};

/* Counts so far. */
struct taut_deadline_counts {
    /* Messages of this side, and how many of them the other one has delivered, and has not. */
    uint64_t sent;
    uint64_t arrived_in_time;
    uint64_t arrived_not;
    /* Messages of the other side that were delivered here, and that were not. */
    uint64_t delivered;
    uint64_t missed;
    /* Datagrams. */
    uint64_t packets_sent;
    uint64_t packets_received;
    /* Datagrams that could not be read, or were not of this connection. */
    uint64_t malformed;
    uint64_t forged;
};

/* Why a message is not taken. */
enum {
    TAUT_DEADLINE_FULL = 1,
    TAUT_DEADLINE_TOO_LONG = 2,
    TAUT_DEADLINE_ENDED = 3
};

struct taut_deadline;

uint32_t taut_deadline_abi(void);

/* Fills settings with those that are usual: 10 ms, as many repairs as losses ask for, no key. */
void taut_deadline_defaults(struct taut_deadline_settings *settings);

/* Opens a connection: its first packets say hello until somebody answers. Null if the settings cannot be: the reason, ended by 0
 * and cut to `room` bytes, is in `reason` then, which may be null if `room` is 0. */
struct taut_deadline *taut_deadline_open(const struct taut_deadline_settings *settings, uint64_t now_ns, char *reason, size_t room);

/* Accepts a connection by the first packet of it, which has come from somebody new. Null, with the reason, if the packet opens
 * none. */
struct taut_deadline *taut_deadline_accept(const struct taut_deadline_settings *settings, uint64_t now_ns, const uint8_t *packet, size_t bytes,
    char *reason, size_t room);

/* Ends an endpoint, which may be null. Say farewell before (taut_deadline_leave), and transmit once more. */
void taut_deadline_free(struct taut_deadline *endpoint);

/* Takes a message that has to be delivered within the target from now: 0, or why it is not taken. */
int taut_deadline_send(struct taut_deadline *endpoint, uint64_t now_ns, const uint8_t *message, size_t bytes);

/* Takes in a packet that has come now: 1, or 0 if it is none of this connection. */
int taut_deadline_receive(struct taut_deadline *endpoint, uint64_t now_ns, const uint8_t *packet, size_t bytes);

/* Writes the next packet that is to leave now into TAUT_DEADLINE_DATAGRAM bytes, and returns its length; 0 if there is none. */
size_t taut_deadline_transmit(struct taut_deadline *endpoint, uint64_t now_ns, uint8_t *packet);

/* Writes the next message that is to be delivered now, cut to `room` bytes, and returns its whole length; -1 if there is none. */
int64_t taut_deadline_deliver(struct taut_deadline *endpoint, uint64_t now_ns, uint8_t *message, size_t room);

/* When to ask for packets and messages again if nothing comes before; UINT64_MAX if nothing will be due. */
uint64_t taut_deadline_wake(const struct taut_deadline *endpoint, uint64_t now_ns);

/* Writes the next notice: 1, or 0 if there is none. */
int taut_deadline_notice(struct taut_deadline *endpoint, struct taut_deadline_notice *notice);

/* Says farewell with the next packet. */
void taut_deadline_leave(struct taut_deadline *endpoint);

/* 1 once it is over: nothing is sent or taken in any more. */
int taut_deadline_has_ended(const struct taut_deadline *endpoint);

void taut_deadline_counts(const struct taut_deadline *endpoint, struct taut_deadline_counts *counts);

#ifdef __cplusplus
}
#endif

#endif
