/* Sends messages over the deadline transport, and returns them.
 *
 *     ./echo server 9000 &
 *     ./echo client 127.0.0.1 9000 1000
 *
 * The client sends a message every 2 ms. It prints how many of them were delivered within 10 ms, and how many returned.
 */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <taut_deadline.h>
#include <time.h>
#include <unistd.h>

#define INTERVAL_NS 2000000u

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static int fail(const char *what)
{
    fprintf(stderr, "echo: %s\n", what);
    return 2;
}

/* Waits until a time, or until a packet has arrived. */
static void wait_until(int socket, uint64_t at_ns)
{
    uint64_t now = now_ns();
    uint64_t left = at_ns > now ? at_ns - now : 0;
    struct timespec time = {0, 0};
    if (left > 100000000u)
        left = 100000000u;
    time.tv_nsec = (long)left;
    struct pollfd one = {socket, POLLIN, 0};
    ppoll(&one, 1, &time, NULL);
}

static void transmit(struct taut_deadline *endpoint, int socket, const struct sockaddr_in *to)
{
    uint8_t packet[TAUT_DEADLINE_DATAGRAM];
    size_t bytes;
    /* A packet that the kernel does not accept is lost, as on the network. */
    while ((bytes = taut_deadline_transmit(endpoint, now_ns(), packet)) > 0)
        (void)!sendto(socket, packet, bytes, 0, (const struct sockaddr *)to, sizeof *to);
}

/* Sends the messages of one client at a time back to the client, until it sends a farewell. */
static int serve(int socket, const struct taut_deadline_settings *settings)
{
    struct taut_deadline *endpoint = NULL;
    struct sockaddr_in peer = {0};
    uint64_t echoed = 0;
    for (;;) {
        uint8_t packet[TAUT_DEADLINE_DATAGRAM], message[TAUT_DEADLINE_DATAGRAM];
        struct sockaddr_in from;
        socklen_t length = sizeof from;
        struct taut_deadline_notice notice;
        ssize_t bytes;
        int64_t delivered;
        wait_until(socket, endpoint ? taut_deadline_wake(endpoint, now_ns()) : UINT64_MAX);
        while ((bytes = recvfrom(socket, packet, sizeof packet, MSG_DONTWAIT, (struct sockaddr *)&from, &length)) >= 0) {
            if (!endpoint) {
                endpoint = taut_deadline_accept(settings, now_ns(), packet, (size_t)bytes, NULL, 0);
                peer = from;
            } else if (from.sin_addr.s_addr == peer.sin_addr.s_addr && from.sin_port == peer.sin_port) {
                taut_deadline_receive(endpoint, now_ns(), packet, (size_t)bytes);
            }
        }
        if (!endpoint)
            continue;
        while ((delivered = taut_deadline_deliver(endpoint, now_ns(), message, sizeof message)) >= 0)
            echoed += taut_deadline_send(endpoint, now_ns(), message, (size_t)delivered) == 0;
        transmit(endpoint, socket, &peer);
        while (taut_deadline_notice(endpoint, &notice)) {
            if (notice.kind == TAUT_DEADLINE_LEFT || notice.kind == TAUT_DEADLINE_SILENT) {
                printf("echoed %llu messages\n", (unsigned long long)echoed);
                taut_deadline_free(endpoint);
                return 0;
            }
        }
    }
}

static int ask(int socket, const struct taut_deadline_settings *settings, const struct sockaddr_in *server, unsigned long count)
{
    char reason[200];
    struct taut_deadline *endpoint = taut_deadline_open(settings, now_ns(), reason, sizeof reason);
    struct taut_deadline_counts counts;
    uint64_t next_ns = 0, end_ns = UINT64_MAX;
    unsigned long sent = 0, back = 0;
    if (!endpoint)
        return fail(reason);
    while (now_ns() < end_ns) {
        uint8_t packet[TAUT_DEADLINE_DATAGRAM], message[200] = {0};
        struct taut_deadline_notice notice;
        ssize_t bytes;
        uint64_t wake_ns;
        while ((bytes = recv(socket, packet, sizeof packet, MSG_DONTWAIT)) >= 0)
            taut_deadline_receive(endpoint, now_ns(), packet, (size_t)bytes);
        while (taut_deadline_notice(endpoint, &notice)) {
            if (notice.kind == TAUT_DEADLINE_CONNECTED)
                next_ns = now_ns();
            if (notice.kind == TAUT_DEADLINE_SILENT) {
                taut_deadline_free(endpoint);
                return fail("nobody answers");
            }
        }
        while (taut_deadline_deliver(endpoint, now_ns(), message, sizeof message) >= 0)
            back++;
        if (next_ns && sent < count && now_ns() >= next_ns) {
            memcpy(message, &sent, sizeof sent);
            taut_deadline_send(endpoint, now_ns(), message, sizeof message);
            next_ns += INTERVAL_NS;
            if (++sent == count)
                end_ns = now_ns() + 200000000u;
        }
        transmit(endpoint, socket, server);
        wake_ns = taut_deadline_wake(endpoint, now_ns());
        if (next_ns && sent < count && next_ns < wake_ns)
            wake_ns = next_ns;
        wait_until(socket, wake_ns < end_ns ? wake_ns : end_ns);
    }
    taut_deadline_counts(endpoint, &counts);
    printf("%lu messages: %llu in time, %lu came back\n", sent, (unsigned long long)counts.arrived_in_time, back);
    taut_deadline_leave(endpoint);
    transmit(endpoint, socket, server);
    taut_deadline_free(endpoint);
    return 0;
}

int main(int count, char **words)
{
    struct taut_deadline_settings settings;
    struct sockaddr_in address = {0};
    int is_server = count == 3 && !strcmp(words[1], "server");
    int is_client = count == 5 && !strcmp(words[1], "client");
    int udp, result;
    if (!is_server && !is_client)
        return fail("expected: server PORT, or client ADDRESS PORT MESSAGES");
    if (taut_deadline_abi() != TAUT_DEADLINE_ABI)
        return fail("the library is of another version than its header");
    taut_deadline_defaults(&settings);
    address.sin_family = AF_INET;
    address.sin_port = htons((uint16_t)atoi(words[is_server ? 2 : 3]));
    if (is_client && inet_pton(AF_INET, words[2], &address.sin_addr) != 1)
        return fail("no IPv4 address");
    udp = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (udp < 0 || (is_server && bind(udp, (struct sockaddr *)&address, sizeof address)))
        return fail("no socket at that port");
    if (is_server) {
        puts("listening");
        fflush(stdout);
    }
    result = is_server ? serve(udp, &settings) : ask(udp, &settings, &address, strtoul(words[4], NULL, 10));
    close(udp);
    return result;
}
