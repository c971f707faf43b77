/* Encodes repairs of source symbols with ISA-L, for benches/coding.rs. `isal SOURCES REPAIRS BYTES SECONDS` prints
 * nanoseconds per round (all repairs of all sources), of the fastest block of rounds. */
#include <isa-l/erasure_code.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC_RAW, &t);
	return t.tv_sec * 1e9 + t.tv_nsec;
}

int main(int argc, char **argv)
{
	if (argc != 5)
		return 2;
	int sources = atoi(argv[1]), repairs = atoi(argv[2]), bytes = atoi(argv[3]);
	double end = now_ns() + atof(argv[4]) * 1e9;
	unsigned char *matrix = malloc((size_t)repairs * sources);
	unsigned char *tables = malloc((size_t)32 * sources * repairs);
	unsigned char **in = malloc(sources * sizeof(*in)), **out = malloc(repairs * sizeof(*out));
	for (int i = 0; i < sources; i++) {
		in[i] = aligned_alloc(64, (bytes + 63) / 64 * 64);
		for (int j = 0; j < bytes; j++)
			in[i][j] = rand();
	}
	for (int i = 0; i < repairs; i++)
		out[i] = aligned_alloc(64, (bytes + 63) / 64 * 64);
	for (int i = 0; i < repairs * sources; i++)
		matrix[i] = 1 + rand() % 255;
	double best = 1e18;
	while (now_ns() < end) {
		const int rounds = 64;
		double start = now_ns();
		for (int r = 0; r < rounds; r++) {
			/* Each round uses new coefficients, as in network coding. */
			matrix[r % (repairs * sources)] ^= 3;
			ec_init_tables(sources, repairs, matrix, tables);
			ec_encode_data(bytes, sources, repairs, tables, in, out);
		}
		double each = (now_ns() - start) / rounds;
		if (each < best)
			best = each;
	}
	printf("%.1f\n", best);
	return 0;
}
