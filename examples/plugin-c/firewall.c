/* Lets UDP to one port pass, and drops other UDP: docs/how-to/write-your-own-function.md. */
#include <stdlib.h>
#include <taut_function.h>

struct firewall {
    long port;
    uint64_t *refused;
};

uint32_t taut_function_abi(void)
{
    return TAUT_FUNCTION_ABI;
}

void *taut_function_make(const char *settings, const struct taut_host *host)
{
    long port = strtol(settings, NULL, 10);
    struct firewall *made = malloc(sizeof *made);
    if (made == NULL || port < 1 || port > 65535) {
        host->fail(host, "settings: expected the port that may pass, 1 to 65535");
        free(made);
        return NULL;
    }
    made->port = port;
    made->refused = host->counter(host, "refused");
    return made;
}

void taut_function_process(void *state, struct taut_packet *packets, uint32_t count, const struct taut_batch *batch)
{
    struct firewall *firewall = state;
    (void)batch;
    for (uint32_t i = 0; i < count; i++) {
        const uint8_t *frame = packets[i].data;
        /* IPv4 without options, and UDP in it. */
        int is_udp = packets[i].length >= 42 && frame[12] == 8 && frame[13] == 0 && frame[14] == 0x45 && frame[23] == 17;
        if (is_udp && (frame[36] << 8 | frame[37]) != firewall->port) {
            packets[i].verdict = TAUT_DROP;
            ++*firewall->refused;
        }
    }
}

void taut_function_free(void *state)
{
    free(state);
}
