/* The deadline transport of taut: messages that arrive in time and in order, or not at all.
 *
 * Licence: Apache-2.0. Plain C (C99) and C++; all numbers are in the machine's byte order.
 *
 *     cc -O2 -o mine mine.c -ltaut_deadline
 *
 * An endpoint is one side of a connection. It reads no clock and no socket. You pass it the time and the packets that
 * arrive, and it returns the packets to send, the messages to deliver, and the time of the next call. It therefore works
 * with any event loop and any way to send datagrams:
 *
 *     for (;;) {
 *         while ((bytes = taut_deadline_transmit(endpoint, now(), packet)) > 0)
 *             send(socket, packet, bytes, 0);
 *         while ((bytes = taut_deadline_deliver(endpoint, now(), message, sizeof message)) >= 0)
 *             use(message, bytes);
 *         wait until taut_deadline_wake(endpoint, now()), or a packet arrives;
 *         while ((bytes = recv(socket, packet, sizeof packet, MSG_DONTWAIT)) > 0)
 *             taut_deadline_receive(endpoint, now(), packet, bytes);
 *     }
 *
 * Times are ns of a clock that is never set, such as CLOCK_MONOTONIC. No function blocks, allocates after the start, or
 * makes system calls. An endpoint belongs to one thread at a time. Pointers may be null only where it is stated.
 */

#ifndef TAUT_DEADLINE_H
#define TAUT_DEADLINE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this interface; taut_deadline_abi returns that of the library. */
#define TAUT_DEADLINE_ABI 1u

/* The maximum length of a datagram, bytes. */
#define TAUT_DEADLINE_DATAGRAM 1472u

/* The settings of a connection. Each side has separate settings for the messages that it sends. */
struct taut_deadline_settings {
    /* The time from accepting a message to the deadline of its delivery, 10 us to 4 s. */
    uint64_t target_ns;
    /* The remaining time at which the receiver delivers a message: a short window equalises delays, one as long as the
     * target minimises them. */
    uint64_t window_ns;
    /* The number of repairs sent in advance for each message: 0 sends none; a negative number sends as many as losses
     * require. */
    double redundancy;
    /* The number of packets after which the receiver sends feedback, unless it has a message to send anyway. */
    uint32_t feedback_every;
    /* The maximum length of a message, bytes. */
    uint32_t message_bytes;
    /* The maximum number of messages that a side buffers, 16 to 65536. */
    uint32_t kept;
    /* The maximum difference between the clocks of both sides, such as 0 on one machine; UINT64_MAX if unknown. */
    uint64_t clock_error_ns;
    /* The required fraction of the messages in time; you get a notice when fewer arrive in time. */
    double in_time;
    /* The time without a packet after which the peer counts as gone. */
    uint64_t silence_ns;
    /* A key of 16 to 64 bytes that both sides share, so that packets of others are rejected; null and 0 for none. */
    const uint8_t *key;
    size_t key_bytes;
};

/* The kinds of notices. */
enum {
    /* The peer has replied: `time_ns` is the round-trip time of its first reply. */
    TAUT_DEADLINE_CONNECTED = 1,
    /* Fewer messages arrive in time than required: `share` is the fraction of the latest messages in time. */
    TAUT_DEADLINE_OUT_OF_REACH = 2,
    /* The required fraction of messages arrives in time again: `share` is the fraction of the latest messages. */
    TAUT_DEADLINE_IN_REACH = 3,
    /* The peer has sent a farewell. */
    TAUT_DEADLINE_LEFT = 4,
    /* The peer has sent nothing for `silence_ns`. */
    TAUT_DEADLINE_SILENT = 5,
    /* The peer uses another version: `share` is that version. */
    TAUT_DEADLINE_REFUSED = 6
};

struct taut_deadline_notice {
    uint32_t kind;
    double share;
    uint64_t time_ns;
};

/* The counts so far. */
struct taut_deadline_counts {
    /* The messages of this side: sent, reported as delivered in time, and reported as missed. */
    uint64_t sent;
    uint64_t arrived_in_time;
    uint64_t arrived_not;
    /* The messages of the peer that were delivered here, and those that were missed. */
    uint64_t delivered;
    uint64_t missed;
    /* Datagrams sent and received. */
    uint64_t packets_sent;
    uint64_t packets_received;
    /* Datagrams that could not be parsed, and those that did not belong to this connection. */
    uint64_t malformed;
    uint64_t forged;
};

/* The reasons why a message is not accepted. */
enum {
    TAUT_DEADLINE_FULL = 1,
    TAUT_DEADLINE_TOO_LONG = 2,
    TAUT_DEADLINE_ENDED = 3
};

struct taut_deadline;

uint32_t taut_deadline_abi(void);

/* Fills settings with the defaults: 10 ms, as many repairs as losses require, no key. */
void taut_deadline_defaults(struct taut_deadline_settings *settings);

/* Opens a connection: its first packets say hello until the peer replies. Returns null if the settings are invalid.
 * `reason` then contains the reason, terminated by 0 and truncated to `room` bytes; it may be null if `room` is 0. */
struct taut_deadline *taut_deadline_open(const struct taut_deadline_settings *settings, uint64_t now_ns, char *reason, size_t room);

/* Accepts a connection by its first packet, from an unknown address. Returns null, with the reason, if the packet does
 * not open a connection. */
struct taut_deadline *taut_deadline_accept(const struct taut_deadline_settings *settings, uint64_t now_ns, const uint8_t *packet, size_t bytes,
    char *reason, size_t room);

/* Frees an endpoint, which may be null. Before that, say farewell (taut_deadline_leave) and transmit once more. */
void taut_deadline_free(struct taut_deadline *endpoint);

/* Accepts a message that has to be delivered within the target from now. Returns 0, or the reason why it is not
 * accepted. */
int taut_deadline_send(struct taut_deadline *endpoint, uint64_t now_ns, const uint8_t *message, size_t bytes);

/* Processes a packet that has arrived now. Returns 1, or 0 if it does not belong to this connection. */
int taut_deadline_receive(struct taut_deadline *endpoint, uint64_t now_ns, const uint8_t *packet, size_t bytes);

/* Writes the next packet to send now into TAUT_DEADLINE_DATAGRAM bytes, and returns its length; 0 if there is none. */
size_t taut_deadline_transmit(struct taut_deadline *endpoint, uint64_t now_ns, uint8_t *packet);

/* Writes the next message to deliver now, truncated to `room` bytes, and returns its full length; -1 if there is
 * none. */
int64_t taut_deadline_deliver(struct taut_deadline *endpoint, uint64_t now_ns, uint8_t *message, size_t room);

/* Returns the time to call transmit and deliver again if no packet arrives before; UINT64_MAX if nothing will be
 * due. */
uint64_t taut_deadline_wake(const struct taut_deadline *endpoint, uint64_t now_ns);

/* Writes the next notice. Returns 1, or 0 if there is none. */
int taut_deadline_notice(struct taut_deadline *endpoint, struct taut_deadline_notice *notice);

/* Ends the connection: the next call of taut_deadline_transmit writes a farewell. */
void taut_deadline_leave(struct taut_deadline *endpoint);

/* Returns 1 once the connection has ended: it neither sends nor accepts anything. */
int taut_deadline_has_ended(const struct taut_deadline *endpoint);

void taut_deadline_counts(const struct taut_deadline *endpoint, struct taut_deadline_counts *counts);

#ifdef __cplusplus
}
#endif

#endif
