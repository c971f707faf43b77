/* A function of taut in C. It swaps the source and destination MAC addresses, counts packets, and drops frames that
 * are too short for both.
 *
 *     make
 *     taut forward --port pcap:in.pcap --port pcap:out.pcap,role=write --function 'plugin(file=libmac_swap.so)'
 */

#include "taut_function.h"

#include <stdlib.h>
#include <string.h>

#define MAC_BYTES 6
#define HEADER_BYTES 14

struct state {
    uint64_t *swapped;
};

uint32_t taut_function_abi(void)
{
    return TAUT_FUNCTION_ABI;
}

void *taut_function_make(const char *settings, const struct taut_host *host)
{
    struct state *state;
    if (settings[0] != '\0') {
        host->fail(host, "settings: there are none: leave them out");
        return NULL;
    }
    state = malloc(sizeof *state);
    if (state == NULL) {
        host->fail(host, "no memory is left");
        return NULL;
    }
    state->swapped = host->counter(host, "MAC addresses swapped");
    return state;
}

void taut_function_process(void *of, struct taut_packet *packets, uint32_t count, const struct taut_batch *batch)
{
    struct state *state = of;
    uint64_t swapped = 0;
    (void)batch;
    for (uint32_t i = 0; i < count; i++) {
        uint8_t *frame = packets[i].data;
        uint8_t destination[MAC_BYTES];
        if (packets[i].length < HEADER_BYTES) {
            packets[i].verdict = TAUT_DROP;
            continue;
        }
        memcpy(destination, frame, MAC_BYTES);
        memcpy(frame, frame + MAC_BYTES, MAC_BYTES);
        memcpy(frame + MAC_BYTES, destination, MAC_BYTES);
        swapped++;
    }
    *state->swapped += swapped;
}

void taut_function_free(void *of)
{
    free(of);
}
