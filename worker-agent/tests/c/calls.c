/* Every function of tally.h, with good and with bad arguments, at two ranks. */
#include "tally.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define LONG_MS 60000

#define CHECK(it)                                                                                                      \
    do {                                                                                                               \
        if (!(it)) {                                                                                                   \
            fprintf(stderr, "rank %d, line %d: %s; %s\n", rank, __LINE__, #it, tally_last_error());                    \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)
#define GOOD(it) CHECK((it) == TALLY_OK)
#define BAD(it, error, words)                                                                                          \
    do {                                                                                                               \
        CHECK((it) == (error));                                                                                        \
        CHECK(strstr(tally_last_error(), words));                                                                      \
    } while (0)

static int rank, workers;
static tally_job *job;

static void connecting(void) {
    tally_job *none = (tally_job *)&rank;
    const char *at = getenv("TALLY_SOCKET");
    CHECK(*tally_last_error() == 0 && tally_last_error_ranks() == 0);
    BAD(tally_connect(at, 7, rank, workers, 1000, NULL), TALLY_ERROR_ARGUMENT, "pointer for the job is null");
    BAD(tally_connect("\xff", 7, rank, workers, 1000, &none), TALLY_ERROR_ARGUMENT, "UTF-8");
    BAD(tally_connect(at, 65536, rank, workers, 1000, &none), TALLY_ERROR_ARGUMENT, "65536, expected 0 to 65535");
    BAD(tally_connect(at, -1, rank, workers, 1000, &none), TALLY_ERROR_ARGUMENT, "job: found -1");
    BAD(tally_connect(at, 7, 65536, workers, 1000, &none), TALLY_ERROR_ARGUMENT, "rank: found 65536");
    BAD(tally_connect(at, 7, 2, 2, 1000, &none), TALLY_ERROR_ARGUMENT, "rank 2 of 2 workers");
    BAD(tally_connect(at, 7, 0, 0, 1000, &none), TALLY_ERROR_ARGUMENT, "of 0 workers");
    BAD(tally_connect(at, 7, 0, 4097, 1000, &none), TALLY_ERROR_ARGUMENT, "of 4097 workers");
    BAD(tally_connect(at, 7, 4096, 4096, 1000, &none), TALLY_ERROR_ARGUMENT, "rank 4096");
    CHECK(tally_last_error_rank_range(NULL) == 0);
    BAD(tally_connect(at, 8, rank, workers, 1000, &none), TALLY_ERROR_REFUSED, "no job 8");
    BAD(tally_connect(at, 7, rank, 3, 1000, &none), TALLY_ERROR_REFUSED, "expects 3 workers");
    BAD(tally_connect("/none", 7, rank, workers, 0, &none), TALLY_ERROR_CONNECT, "cannot reach the agent at /none");
    BAD(tally_connect("", 7, rank, workers, 0, &none), TALLY_ERROR_CONNECT, "");
    CHECK(none == (tally_job *)&rank);
    GOOD(tally_connect(at, 7, rank, workers, LONG_MS, &job));
    BAD(tally_connect(at, 7, rank, workers, 0, &none), TALLY_ERROR_REFUSED, "is that rank already");
}

static void nulls(void) {
    tally_region *region;
    uint64_t ticket;
    int done;
    BAD(tally_region_create(NULL, 1, &region), TALLY_ERROR_ARGUMENT, "the job is null");
    BAD(tally_region_create(job, 1, NULL), TALLY_ERROR_ARGUMENT, "pointer for the region is null");
    BAD(tally_region_create(job, 0, &region), TALLY_ERROR_ARGUMENT, "one byte at least");
    BAD(tally_region_create(job, SIZE_MAX, &region), TALLY_ERROR_LIMIT, "memory_mib");
    CHECK(tally_region_data(NULL) == NULL && tally_region_bytes(NULL) == 0);
    tally_region_free(NULL);
    GOOD(tally_region_create(job, 4096, &region));
    BAD(tally_all_reduce(NULL, region, 0, 1, TALLY_F32, TALLY_SUM, TALLY_OWN, -1, "w", &ticket), TALLY_ERROR_ARGUMENT,
        "the job is null");
    BAD(tally_all_reduce(job, NULL, 0, 1, TALLY_F32, TALLY_SUM, TALLY_OWN, -1, "w", &ticket), TALLY_ERROR_ARGUMENT,
        "the region is null");
    BAD(tally_all_reduce(job, region, 0, 1, TALLY_F32, TALLY_SUM, TALLY_OWN, -1, "w", NULL), TALLY_ERROR_ARGUMENT,
        "pointer for the ticket is null");
    BAD(tally_broadcast(NULL, region, 0, 1, TALLY_F32, 0, -1, "w", &ticket), TALLY_ERROR_ARGUMENT, "null");
    BAD(tally_barrier(NULL, "w", &ticket), TALLY_ERROR_ARGUMENT, "null");
    BAD(tally_barrier(job, "w", NULL), TALLY_ERROR_ARGUMENT, "null");
    BAD(tally_wait(NULL, 0, 0), TALLY_ERROR_ARGUMENT, "null");
    BAD(tally_test(NULL, 0, &done), TALLY_ERROR_ARGUMENT, "null");
    BAD(tally_test(job, 0, NULL), TALLY_ERROR_ARGUMENT, "null");
    BAD(tally_all_reduce_array(NULL, &done, 1, TALLY_I32, TALLY_SUM, TALLY_OWN, -1, "w", 0), TALLY_ERROR_ARGUMENT,
        "null");
    BAD(tally_all_reduce_array(job, NULL, 1, TALLY_I32, TALLY_SUM, TALLY_OWN, -1, "w", 0), TALLY_ERROR_ARGUMENT,
        "`w`: the data is null");
    BAD(tally_finish(NULL, 0), TALLY_ERROR_ARGUMENT, "null");
    tally_abort(NULL);
    tally_free(NULL);
    tally_region_free(region);
}

static void what_is_none(void) {
    tally_region *region;
    uint64_t ticket = 12345;
    char name[TALLY_NAME_BYTES_MAX + 2];
    int done = 7, value = 1;
    GOOD(tally_region_create(job, 100, &region));
    CHECK(tally_region_bytes(region) == 100);
    memset(name, 'x', sizeof name);
    name[sizeof name - 1] = 0;
#define SUM(offset, elements, dtype, op, arithmetic, priority, name)                                                  \
    tally_all_reduce(job, region, offset, elements, (tally_dtype)(dtype), (tally_op)(op),                              \
                     (tally_arithmetic)(arithmetic), priority, name, &ticket)
    BAD(SUM(0, 1, 6, 0, 0, -1, "w"), TALLY_ERROR_ARGUMENT, "`w`: dtype: found 6");
    BAD(SUM(0, 1, -1, 0, 0, -1, "w"), TALLY_ERROR_ARGUMENT, "`w`: dtype: found -1");
    BAD(SUM(0, 1, 0, 2, 0, -1, "w"), TALLY_ERROR_ARGUMENT, "`w`: op: found 2");
    BAD(SUM(0, 1, 0, 0, 3, -1, "w"), TALLY_ERROR_ARGUMENT, "`w`: arithmetic: found 3");
    BAD(SUM(0, 1, 0, 0, 0, 256, "w"), TALLY_ERROR_ARGUMENT, "`w`: priority: found 256");
    BAD(SUM(0, 1, 0, 0, 0, -2, "w"), TALLY_ERROR_ARGUMENT, "`w`: priority: found -2");
    BAD(SUM(0, 1, 0, 0, 0, -1, "\xc3"), TALLY_ERROR_ARGUMENT, "UTF-8");
    BAD(SUM(0, 1, 0, 0, 0, -1, name), TALLY_ERROR_ARGUMENT, "at most 255 bytes");
    BAD(SUM(0, 26, 0, 0, 0, -1, NULL), TALLY_ERROR_ARGUMENT, "`all_reduce`: 26 elements");
    BAD(SUM(97, 1, 0, 0, 0, -1, "w"), TALLY_ERROR_ARGUMENT, "from byte 97 on");
    BAD(SUM(0, SIZE_MAX, 0, 0, 0, -1, "w"), TALLY_ERROR_ARGUMENT, "are not in a region");
    BAD(SUM(SIZE_MAX, 1, 0, 0, 0, -1, "w"), TALLY_ERROR_ARGUMENT, "are not in a region");
    BAD(tally_broadcast(job, region, 0, 1, TALLY_F32, workers, -1, "w", &ticket), TALLY_ERROR_ARGUMENT,
        "the root is rank 2, expected 0 to 1");
    BAD(tally_broadcast(job, region, 0, 1, TALLY_F32, -1, -1, NULL, &ticket), TALLY_ERROR_ARGUMENT,
        "`broadcast`: root: found -1");
    BAD(tally_all_reduce_array(job, &value, SIZE_MAX / 2, TALLY_I32, TALLY_SUM, TALLY_OWN, -1, "w", 0),
        TALLY_ERROR_ARGUMENT, "more than there is memory for");
    BAD(tally_all_reduce_array(job, &value, SIZE_MAX / 8, TALLY_I32, TALLY_SUM, TALLY_OWN, -1, "w", 0),
        TALLY_ERROR_LIMIT, "`w`");
    BAD(tally_wait(job, 999, LONG_MS), TALLY_ERROR_ARGUMENT, "ticket 999 is not under way");
    BAD(tally_test(job, UINT64_MAX, &done), TALLY_ERROR_ARGUMENT, "is not under way");
    CHECK(ticket == 12345 && done == 7 && value == 1);
    tally_region_free(region);
}

static void collectives(void) {
    tally_region *region;
    uint64_t tickets[4];
    int done = 0;
    GOOD(tally_region_create(job, 100000, &region));
    char *data = (char *)tally_region_data(region);
    float *floats = (float *)data;
    int16_t *shorts = (int16_t *)(data + 50001 - 1);
    int32_t value;
    for (int i = 0; i < 5000; i++) {
        floats[i] = (float)(i + rank);
        shorts[i] = (int16_t)(i + rank);
    }
    floats[3] = rank ? 1 : NAN;
    floats[4] = rank ? INFINITY : 1;
    GOOD(tally_all_reduce(job, region, 0, 5000, TALLY_F32, TALLY_SUM, TALLY_NATIVE, 255, "floats", &tickets[0]));
    GOOD(tally_all_reduce(job, region, 50000, 5000, TALLY_I16, TALLY_MEAN, TALLY_OWN, -1, NULL, &tickets[1]));
    data[99990] = (char)(rank + 1);
    GOOD(tally_broadcast(job, region, 99990, 1, TALLY_I8, 1, 0, NULL, &tickets[2]));
    GOOD(tally_barrier(job, NULL, &tickets[3]));
    while (!done) {
        GOOD(tally_test(job, tickets[3], &done));
    }
    for (int i = 2; i >= 0; i--) {
        GOOD(tally_wait(job, tickets[i], LONG_MS));
        BAD(tally_wait(job, tickets[i], LONG_MS), TALLY_ERROR_ARGUMENT, "was waited for before");
    }
    for (int i = 0; i < 5000; i++) {
        CHECK(i == 3 ? isnan(floats[i]) : i == 4 ? isinf(floats[i]) : floats[i] == (float)(2 * i + 1));
        CHECK(shorts[i] == i);
    }
    CHECK(data[99990] == 2);
    GOOD(tally_all_reduce_array(job, NULL, 0, TALLY_F32, TALLY_SUM, TALLY_FIXED, -1, "nothing", LONG_MS));
    value = rank + 40;
    GOOD(tally_all_reduce_array(job, &value, 1, TALLY_I32, TALLY_SUM, TALLY_OWN, -1, NULL, LONG_MS));
    CHECK(value == 81);
    /* The region goes, and what is under way there does not matter to anybody. */
    GOOD(tally_all_reduce(job, region, 0, 10, TALLY_F32, TALLY_SUM, TALLY_OWN, -1, "lost", &tickets[0]));
    tally_region_free(region);
    GOOD(tally_wait(job, tickets[0], LONG_MS));
}

static void *waits(void *argument) {
    uint64_t *ticket = (uint64_t *)argument;
    CHECK(*tally_last_error() == 0);
    tally_error error = tally_wait(job, *ticket, LONG_MS);
    *ticket = error;
    return NULL;
}

/* Eight threads wait, each for its own. */
static void threads(void) {
    enum { N = 8, ELEMENTS = 3000 };
    pthread_t threads[N];
    uint64_t tickets[N];
    tally_region *region;
    GOOD(tally_region_create(job, N * ELEMENTS * sizeof(int32_t), &region));
    int32_t *data = (int32_t *)tally_region_data(region);
    for (int step = 0; step < 20; step++) {
        for (int i = 0; i < N * ELEMENTS; i++) {
            data[i] = i * (rank + 1);
        }
        for (int n = 0; n < N; n++) {
            size_t at = (size_t)n * ELEMENTS * sizeof(int32_t);
            GOOD(tally_all_reduce(job, region, at, ELEMENTS, TALLY_I32, TALLY_SUM, TALLY_OWN, -1, "t", &tickets[n]));
            CHECK(pthread_create(&threads[n], NULL, waits, &tickets[n]) == 0);
        }
        for (int n = 0; n < N; n++) {
            CHECK(pthread_join(threads[n], NULL) == 0);
            CHECK(tickets[n] == TALLY_OK);
        }
        for (int i = 0; i < N * ELEMENTS; i++) {
            CHECK(data[i] == 3 * i);
        }
    }
    tally_region_free(region);
}

/* A child of ours may free what it has, and do no more. */
static void forked(void) {
    tally_region *region;
    uint64_t ticket;
    int status;
    GOOD(tally_region_create(job, 4096, &region));
    fflush(stdout);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        const char *why = "fork of the one that made the job";
        tally_region *other;
        BAD(tally_barrier(job, "b", &ticket), TALLY_ERROR_ARGUMENT, why);
        BAD(tally_all_reduce(job, region, 0, 1, TALLY_F32, TALLY_SUM, TALLY_OWN, -1, "w", &ticket),
            TALLY_ERROR_ARGUMENT, why);
        BAD(tally_region_create(job, 1, &other), TALLY_ERROR_ARGUMENT, why);
        BAD(tally_wait(job, 0, LONG_MS), TALLY_ERROR_ARGUMENT, why);
        BAD(tally_finish(job, LONG_MS), TALLY_ERROR_ARGUMENT, why);
        tally_abort(job);
        tally_region_free(region);
        tally_free(job);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    GOOD(tally_all_reduce(job, region, 0, 1, TALLY_F32, TALLY_SUM, TALLY_OWN, -1, "w", &ticket));
    GOOD(tally_wait(job, ticket, LONG_MS));
    tally_region_free(region);
}

/* One rank leaves at once, and the other is told. Then both start again. */
static void failing(void) {
    uint64_t ticket;
    int32_t value = 5;
    if (rank == 0) {
        BAD(tally_all_reduce_array(job, &value, 1, TALLY_I32, TALLY_SUM, TALLY_OWN, -1, "last", 1),
            TALLY_ERROR_TIMEOUT, "`last` takes more than 1ms");
        GOOD(tally_barrier(job, "never", &ticket));
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, waits, &ticket) == 0);
        tally_abort(job);
        CHECK(pthread_join(thread, NULL) == 0);
        CHECK(ticket == TALLY_ERROR_CLOSED);
        BAD(tally_barrier(job, "b", &ticket), TALLY_ERROR_CLOSED, "closed");
    } else {
        /* That rank 0 has left, or that it had brought something else before. */
        tally_error error = TALLY_OK;
        while (error == TALLY_OK) {
            error = tally_all_reduce_array(job, &value, 0, TALLY_I32, TALLY_MEAN, TALLY_OWN, -1, "other", LONG_MS);
        }
        CHECK(error == TALLY_ERROR_MEMBER || error == TALLY_ERROR_MISMATCH);
        CHECK(strstr(tally_last_error(), "job 7 rank 1: "));
        CHECK(error != TALLY_ERROR_MEMBER || tally_last_error_ranks() == 1);
    }
    CHECK(value == 5);
    tally_free(job);
    GOOD(tally_connect(getenv("TALLY_SOCKET"), 7, rank, workers, LONG_MS, &job));
}

static void leaving(void) {
    uint64_t ticket;
    GOOD(tally_barrier(job, NULL, &ticket));
    GOOD(tally_wait(job, ticket, LONG_MS));
    GOOD(tally_finish(job, LONG_MS));
    BAD(tally_finish(job, LONG_MS), TALLY_ERROR_CLOSED, "closed");
    BAD(tally_barrier(job, NULL, &ticket), TALLY_ERROR_CLOSED, "closed");
    tally_free(job);
}

int main(void) {
    rank = atoi(getenv("RANK"));
    workers = atoi(getenv("WORLD_SIZE"));
    connecting();
    nulls();
    what_is_none();
    collectives();
    threads();
    forked();
    failing();
    leaving();
    printf("all good\n");
    return 0;
}
