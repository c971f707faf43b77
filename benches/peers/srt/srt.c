/* taut-srt sends the probes of `taut probe` over SRT in live mode, with Debian's libsrt. It prints the fields of the
 * JSON of `taut probe` that the experiment transport-comparison reads. A connection carries messages in both
 * directions; each message is delivered when its latency is over, or dropped. Build it by
 *     cc -O2 -o taut-srt benches/peers/srt/srt.c -lsrt -lpthread        (packages gcc and libsrt-openssl-dev)
 * and call it as
 *     taut-srt server ADDRESS PORT LATENCY_MS
 *     taut-srt client ADDRESS PORT LATENCY_MS INTERVAL_US SIZE COUNT BUDGET_US
 */
#include <arpa/inet.h>
#include <pthread.h>
#include <srt/srt.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_BYTES = 1456, PROBE_BYTES = 16, PATIENCE_MS = 2000, CONNECT_MS = 10000 };

struct client {
    SRTSOCKET socket;
    long count;
    int64_t *sent_ns, *rtt_ns;
};

static void fail(const char *what) {
    fprintf(stderr, "taut-srt: %s: %s\n", what, srt_getlasterror_str());
    exit(3);
}

static long number(const char *text, long least, long most) {
    char *end;
    long value = strtol(text, &end, 10);
    if (*text == 0 || *end != 0 || value < least || value > most) {
        fprintf(stderr, "taut-srt: %s: expected a number from %ld to %ld\n", text, least, most);
        exit(2);
    }
    return value;
}

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static struct sockaddr_in address(const char *host, const char *port) {
    struct sockaddr_in found = {.sin_family = AF_INET, .sin_port = htons(number(port, 1, 65535))};
    if (inet_pton(AF_INET, host, &found.sin_addr) != 1) {
        fprintf(stderr, "taut-srt: %s: expected an address of IPv4\n", host);
        exit(2);
    }
    return found;
}

static SRTSOCKET open_socket(int latency_ms) {
    SRTSOCKET made = srt_create_socket();
    int bytes = MOST_BYTES, patience_ms = CONNECT_MS;
    if (made == SRT_INVALID_SOCK || srt_setsockflag(made, SRTO_LATENCY, &latency_ms, sizeof latency_ms) ||
        srt_setsockflag(made, SRTO_PAYLOADSIZE, &bytes, sizeof bytes) ||
        srt_setsockflag(made, SRTO_CONNTIMEO, &patience_ms, sizeof patience_ms))
        fail("socket");
    return made;
}

static void serve(struct sockaddr_in here, int latency_ms) {
    SRTSOCKET listens = open_socket(latency_ms);
    if (srt_bind(listens, (struct sockaddr *)&here, sizeof here) || srt_listen(listens, 4))
        fail("listen");
    puts("{\"event\": \"started\"}");
    fflush(stdout);
    for (;;) {
        SRTSOCKET peer = srt_accept(listens, NULL, NULL);
        if (peer == SRT_INVALID_SOCK)
            fail("accept");
        char message[MOST_BYTES];
        int length;
        while ((length = srt_recv(peer, message, sizeof message)) > 0)
            if (length >= PROBE_BYTES && memcmp(message, "tq", 2) == 0) {
                message[1] = 'a';
                srt_send(peer, message, length);
            }
        srt_close(peer);
    }
}

/* Receives replies until none arrives within the timeout of the socket. */
static void *receive(void *of) {
    struct client *client = of;
    char message[MOST_BYTES];
    int length;
    while ((length = srt_recv(client->socket, message, sizeof message)) > 0) {
        int64_t now = now_ns();
        uint32_t sequence;
        memcpy(&sequence, message + 4, sizeof sequence);
        sequence = ntohl(sequence);
        if (length >= PROBE_BYTES && memcmp(message, "ta", 2) == 0 && sequence < client->count)
            client->rtt_ns[sequence] = now - client->sent_ns[sequence];
    }
    return NULL;
}

static int shorter(const void *one, const void *other) {
    int64_t a = *(const int64_t *)one, b = *(const int64_t *)other;
    return (a > b) - (a < b);
}

static int ask(struct sockaddr_in to, int latency_ms, long interval_us, int size, long count, long budget_us) {
    struct client client = {open_socket(latency_ms), count, calloc(count, 8), calloc(count, 8)};
    int patience_ms = PATIENCE_MS + 2 * latency_ms;
    pthread_t receiver;
    if (client.sent_ns == NULL || client.rtt_ns == NULL ||
        srt_setsockflag(client.socket, SRTO_RCVTIMEO, &patience_ms, sizeof patience_ms) ||
        srt_connect(client.socket, (struct sockaddr *)&to, sizeof to) ||
        pthread_create(&receiver, NULL, receive, &client))
        fail("connect");
    char message[MOST_BYTES] = "tq";
    int64_t begun = now_ns();
    for (long at = 0; at < count; at++) {
        int64_t due = begun + at * interval_us * 1000;
        struct timespec until = {due / 1000000000, due % 1000000000};
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
        uint32_t sequence = htonl((uint32_t)at);
        memcpy(message + 4, &sequence, sizeof sequence);
        client.sent_ns[at] = now_ns();
        srt_send(client.socket, message, size);
    }
    pthread_join(receiver, NULL);
    srt_close(client.socket);
    long within = 0, received = 0;
    for (long at = 0; at < count; at++)
        if (client.rtt_ns[at] > 0) {
            within += client.rtt_ns[at] <= budget_us * 1000;
            client.rtt_ns[received++] = client.rtt_ns[at];
        }
    qsort(client.rtt_ns, received, sizeof *client.rtt_ns, shorter);
    printf("{\"transport\": \"srt\", \"sent\": %ld, \"received\": %ld, \"lost_share\": %.6f, ", count, received,
           (double)(count - received) / count);
    printf("\"budget\": {\"ns\": %ld, \"share\": %.6f}", budget_us * 1000, (double)within / count);
    if (received > 0)
        printf(", \"rtt_ns\": {\"p50_ns\": %ld, \"p99_ns\": %ld}", (long)client.rtt_ns[(received - 1) / 2],
               (long)client.rtt_ns[(received - 1) * 99 / 100]);
    puts("}");
    return received > 0 ? 0 : 1;
}

int main(int count, char **words) {
    int is_server = count == 5 && strcmp(words[1], "server") == 0;
    if (!is_server && !(count == 9 && strcmp(words[1], "client") == 0)) {
        fputs("taut-srt: expected server ADDRESS PORT LATENCY_MS, or client and INTERVAL_US SIZE COUNT BUDGET_US behind\n",
              stderr);
        return 2;
    }
    struct sockaddr_in at = address(words[2], words[3]);
    int latency_ms = (int)number(words[4], 0, 4000);
    srt_startup();
    if (is_server)
        serve(at, latency_ms);
    return ask(at, latency_ms, number(words[5], 1, 10000000), number(words[6], PROBE_BYTES, MOST_BYTES),
               number(words[7], 1, 10000000), number(words[8], 1, 100000000));
}
