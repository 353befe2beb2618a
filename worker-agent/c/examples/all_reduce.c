/* Sums an array of floats over all ranks of a job, and looks whether the sum is right.
 *
 *     cc -std=c99 -o all_reduce all_reduce.c -I.. -L../../../target/release -ltally
 *     RANK=0 WORLD_SIZE=2 TALLY_JOB=7 ./all_reduce [ELEMENTS]
 *
 * Start it once for each rank. TALLY_SOCKET names the agent's socket, if it is not the usual one.
 */
#include "tally.h"

#include <stdio.h>
#include <stdlib.h>

#define TIMEOUT_MS 60000

static int number(const char *name, int otherwise) {
    const char *text = getenv(name);
    return text ? atoi(text) : otherwise;
}

/* Says what went wrong, and ends the program. The job's other ranks hear that this one failed. */
static void check(tally_error error) {
    if (error == TALLY_OK) {
        return;
    }
    fprintf(stderr, "error %d: %s\n", error, tally_last_error());
    for (int rank = 0; rank < 64; rank++) {
        if (tally_last_error_ranks() >> rank & 1) {
            fprintf(stderr, "  about rank %d\n", rank);
        }
    }
    exit(1);
}

/* Small whole numbers, which floats add exactly in any order. */
static float element(int rank, size_t i) { return (float)(rank + 1) * (float)(i % 1000); }

int main(int argc, char **argv) {
    int rank = number("RANK", 0), workers = number("WORLD_SIZE", 1);
    size_t elements = argc > 1 ? strtoul(argv[1], NULL, 10) : 1000000;

    tally_job *job;
    check(tally_connect(getenv("TALLY_SOCKET"), number("TALLY_JOB", 7), rank, workers, TIMEOUT_MS, &job));

    /* Tensors that live in a region are not copied on their way to the network. */
    tally_region *region;
    check(tally_region_create(job, elements * sizeof(float) + 1, &region));
    float *gradients = (float *)tally_region_data(region);
    for (size_t i = 0; i < elements; i++) {
        gradients[i] = element(rank, i);
    }
    uint64_t ticket;
    check(tally_all_reduce(job, region, 0, elements, TALLY_F32, TALLY_SUM, TALLY_NATIVE, -1, "gradients", &ticket));

    /* Meanwhile there is time for other work, such as the next layer's gradients. */
    int done;
    check(tally_test(job, ticket, &done));
    if (!done) {
        check(tally_wait(job, ticket, TIMEOUT_MS));
    }
    int all = workers * (workers + 1) / 2;
    for (size_t i = 0; i < elements; i++) {
        if (gradients[i] != element(all - 1, i)) {
            fprintf(stderr, "element %zu is %f, expected %f\n", i, gradients[i], element(all - 1, i));
            return 1;
        }
    }

    /* Any other memory is copied there and back. */
    float mean[3] = {(float)rank, (float)rank, (float)rank};
    check(tally_all_reduce_array(job, mean, 3, TALLY_F32, TALLY_MEAN, TALLY_NATIVE, -1, "mean", TIMEOUT_MS));

    check(tally_finish(job, TIMEOUT_MS));
    tally_region_free(region);
    tally_free(job);
    printf("rank %d: libtally %s summed %zu elements over %d ranks, whose mean rank is %g\n", rank, tally_version(),
           elements, workers, mean[0]);
    return 0;
}
