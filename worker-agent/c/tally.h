/* Tally: sums of tensors over the hosts of a job, made by a switch in the network.
 *
 * A process joins a job through the agent of its host (`tally-agent serve`), puts tensors into
 * memory that it shares with the agent, and submits collectives on them, which are done in place:
 *
 *     tally_job *job;
 *     tally_region *region;
 *     uint64_t ticket;
 *     tally_connect(NULL, 7, rank, workers, 60000, &job);
 *     tally_region_create(job, 4 * elements, &region);
 *     float *gradients = tally_region_data(region);
 *     ...
 *     tally_all_reduce(job, region, 0, elements, TALLY_F32, TALLY_SUM, TALLY_NATIVE, -1,
 *     "gradients", &ticket); tally_wait(job, ticket, 60000); ... tally_region_free(region);
 *     tally_finish(job, 60000); tally_free(job);
 *
 * Order. All ranks submit the same collectives in the same order. What differs is an error that
 * names the ranks (TALLY_ERROR_MISMATCH), and never a wrong sum.
 *
 * Errors. Functions that can fail return TALLY_OK, which is 0, or a tally_error; tally_last_error()
 * then has the words and tally_last_error_ranks() the ranks that it is about. After an error, what
 * a function would have given through a pointer is as it was before. TALLY_ERROR_ARGUMENT,
 * TALLY_ERROR_LIMIT of a job that runs, and a TALLY_ERROR_TIMEOUT because this process did not want
 * to wait any longer leave the job as it is. After any other, the job has failed for good, at all
 * ranks: free it, and start it again. Null pointers, numbers out of range and text that is not
 * UTF-8 are TALLY_ERROR_ARGUMENT. Pointers that are neither null nor what they should be, are not
 * noticed.
 *
 * Threads. Any number of threads may use one job and its regions at a time, also to wait; those
 * that submit need an order among themselves that is the same at all ranks. Only the calls that
 * free something need it for themselves.
 *
 * Processes. A forked child may not use the job of its parent: every call but those that free is
 * TALLY_ERROR_ARGUMENT there. Memory of regions is shared with the child; it may free its own view
 * of it.
 *
 * Times are in milliseconds, and always finite: 0 only looks, and UINT32_MAX is 49 days. The agent
 * gives up by itself when results stop coming (`timeouts` in its configuration), usually sooner.
 *
 * C99 or C++. Link with -ltally (or libtally.a, and -lpthread -ldl -lm).
 */
#ifndef TALLY_H
#define TALLY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Where agents listen, unless their configuration says otherwise. */
#define TALLY_DEFAULT_SOCKET "/run/tally/agent/agent.sock"

/* The longest name of a collective, in bytes, without the zero at its end. */
#define TALLY_NAME_BYTES_MAX 255

/* A rank's place in a job. From tally_connect() to tally_free(). */
typedef struct tally_job tally_job;

/* Memory that a process shares with the agent. From tally_region_create() to
 * tally_region_free(). */
typedef struct tally_region tally_region;

/* What goes wrong. The Python package has the same, as exceptions. */
typedef enum tally_error {
    TALLY_OK = 0,
    TALLY_ERROR_OTHER = 1,       /* none of the others, such as the operating system's */
    TALLY_ERROR_ARGUMENT = 2,    /* an argument that cannot be; the job continues */
    TALLY_ERROR_CLOSED = 3,      /* the job was finished or aborted before */
    TALLY_ERROR_CONNECT = 4,     /* no agent at the socket, or this user may not use it */
    TALLY_ERROR_REFUSED = 5,     /* no such job or rank, other workers, or the rank is taken */
    TALLY_ERROR_VERSION = 6,     /* the agent and this library are of different versions */
    TALLY_ERROR_LIMIT = 7,       /* more than the agent allows, or memory that it cannot use */
    TALLY_ERROR_LINK = 8,        /* the agent cannot use its network */
    TALLY_ERROR_JOIN = 9,        /* the job did not begin; the ranks are those that are missing */
    TALLY_ERROR_MISMATCH = 10,   /* the ranks in the minority brought another collective */
    TALLY_ERROR_MEMBER = 11,     /* another rank, if known, has failed or gone silent */
    TALLY_ERROR_OVERFLOW = 12,   /* a sum of integers left their range */
    TALLY_ERROR_TIMEOUT = 13,    /* no result came in time */
    TALLY_ERROR_AGENT_GONE = 14  /* the agent has ended, or makes no sense */
} tally_error;

/* Types of elements, in the machine's byte order. */
typedef enum tally_dtype {
    TALLY_F32 = 0,  /* 4 bytes */
    TALLY_F16 = 1,  /* IEEE half, 2 bytes */
    TALLY_BF16 = 2, /* the upper half of an f32, 2 bytes */
    TALLY_I32 = 3,  /* two's complement, as are the next two */
    TALLY_I16 = 4,
    TALLY_I8 = 5
} tally_dtype;

/* What becomes of the elements. Sums of integers are exact; their means are truncated toward
 * zero. */
typedef enum tally_op {
    TALLY_SUM = 0, /* the sum over all ranks */
    TALLY_MEAN = 1 /* the sum, divided by the number of ranks */
} tally_op;

/* How floats are summed; for integers it means nothing. NaN and infinity arrive as such at every
 * rank, but for TALLY_FIXED, where infinity becomes NaN. */
typedef enum tally_arithmetic {
    TALLY_FIXED = 0,  /* as integers with an exponent per fragment: does not depend on any order */
    TALLY_NATIVE = 1, /* as f32, in the order of ranks */
    TALLY_OWN = 2     /* in their own type on the wire, in the order of ranks */
} tally_arithmetic;

/* Enumerations are as large as an int, as the library takes them (not with -fshort-enums). */
typedef char tally_enumerations_are_ints[sizeof(tally_error) == sizeof(int) && sizeof(tally_dtype) == sizeof(int) &&
                                                 sizeof(tally_op) == sizeof(int) &&
                                                 sizeof(tally_arithmetic) == sizeof(int)
                                             ? 1
                                             : -1];

/* The version of this library, such as "0.1.0". Never null; lives as long as the process. */
const char *tally_version(void);

/* What went wrong in the last call of this thread that failed: words, in UTF-8, that name job, rank
 * and tensor. Empty if none has. Never null; lives until the next call of this thread that fails,
 * and at most as long as the thread. */
const char *tally_last_error(void);

/* The ranks below 64 that the same is about, bit n for rank n; 0 if it is about none of these, or
 * they are not known. */
uint64_t tally_last_error_ranks(void);

/* The same of a job of any size: the first run of ranks that follow one another. Returns how many
 * they are, 0 if none is known, with the first of them in `*first`, which may be null. In a job of
 * more than 64 workers, all that is known. */
int tally_last_error_rank_range(int *first);

/* Joins the job of number `job` (0 to 65535, in the agent's and the switch's configuration) as rank
 * `rank` (0 to workers - 1) of `workers` (1 to 64 at one switch, to 4096 in a tree of switches),
 * through the agent that listens at `socket` (null: TALLY_DEFAULT_SOCKET). Waits up to 10 s for an
 * agent that is not there yet, up to 30 s for
 * the place of a process that has just ended, and never longer than `timeout_ms`, which is also for
 * the agent's answers later. Does not wait for the other ranks: one that is missing shows at the
 * first collective, as TALLY_ERROR_JOIN.
 *
 * Gives a job in `*out`, to be ended by tally_finish() and tally_free().
 *
 * TALLY_ERROR_CONNECT without an agent, TALLY_ERROR_REFUSED, TALLY_ERROR_VERSION and
 * TALLY_ERROR_LIMIT if it refuses. */
tally_error tally_connect(const char *socket, int job, int rank, int workers, uint32_t timeout_ms, tally_job **out);

/* Makes `bytes` bytes (at least 1) of memory that the agent sees too, all zero: tensors that are
 * there go to the network without another copy. An agent allows a process 256 regions, and
 * `memory_mib` of memory in its configuration. Make few and large ones, at the start, and put
 * several tensors into each.
 *
 * Gives a region in `*out`, to be freed by tally_region_free(), before or after its job.
 *
 * TALLY_ERROR_LIMIT if the agent allows less; the job continues. */
tally_error tally_region_create(tally_job *job, size_t bytes, tally_region **out);

/* The region's first byte, at the start of a page; null for null. There until tally_region_free(),
 * also after the job. From the submission of a collective to the end of it, its part of the region
 * is the agent's: a write to it makes sums wrong, at all ranks. */
void *tally_region_data(const tally_region *region);

/* The region's length; 0 for null. */
size_t tally_region_bytes(const tally_region *region);

/* Frees a region, and its memory at once: the results of collectives that are under way there are
 * lost, and the collectives are not. Null is nothing. */
void tally_region_free(tally_region *region);

/* Submits the sum or the mean over all ranks of `elements` elements, from byte `offset` of
 * `region` on, in place. All ranks bring the same number and type of elements, and the same
 * operation, arithmetic and name.
 *
 * `priority` is how urgent it is, 0 to 255; -1: the agent measures that itself. It may differ
 * between ranks. `name` is for errors, such as "layer1.weight", of at most TALLY_NAME_BYTES_MAX
 * bytes (null: "all_reduce").
 *
 * Gives a ticket in `*ticket`, to be waited for once by tally_wait() or tally_test(). If the
 * agent's limit of collectives in flight (1024) is reached, this waits for one of them, up to the
 * timeout of tally_connect().
 *
 * TALLY_ERROR_ARGUMENT if the elements are not all inside of the region, or the region is of
 * another job. */
tally_error tally_all_reduce(tally_job *job, tally_region *region, size_t offset, size_t elements, tally_dtype dtype,
                             tally_op op, tally_arithmetic arithmetic, int priority, const char *name,
                             uint64_t *ticket);

/* Submits the replacement of elements by those of rank `root`, bit by bit. Everything else is as
 * for tally_all_reduce() (null: "broadcast"). */
tally_error tally_broadcast(tally_job *job, tally_region *region, size_t offset, size_t elements, tally_dtype dtype,
                            int root, int priority, const char *name, uint64_t *ticket);

/* Submits a barrier: it is done when all ranks have submitted it (null: "barrier"). Collectives
 * before it may still be under way then. */
tally_error tally_barrier(tally_job *job, const char *name, uint64_t *ticket);

/* Waits up to `timeout_ms` for a collective. When it returns TALLY_OK, results are there, and the
 * ticket is used up.
 *
 * TALLY_ERROR_TIMEOUT if time is over: it can be waited for again. Unless `timeout_ms` is 0, the
 * agent is then asked what the collective waits for, for up to a second more, and
 * tally_last_error_ranks() are the missing ranks as far as it knows. TALLY_ERROR_ARGUMENT for a
 * ticket that is none, or used up. TALLY_ERROR_JOIN, TALLY_ERROR_MISMATCH, TALLY_ERROR_MEMBER,
 * TALLY_ERROR_OVERFLOW, TALLY_ERROR_TIMEOUT, TALLY_ERROR_LINK and TALLY_ERROR_AGENT_GONE if the job
 * has failed; what is in the region then is undefined. */
tally_error tally_wait(tally_job *job, uint64_t ticket, uint32_t timeout_ms);

/* Whether a collective is done, without waiting: 1 or 0 in `*done`. If it is, the ticket is used
 * up. Errors are those of tally_wait(), without the one for time. */
tally_error tally_test(tally_job *job, uint64_t ticket, int *done);

/* The whole of it for memory of any kind: copies `elements` elements from `data`, sums them, waits
 * up to `timeout_ms`, and copies the results back. `data` is as before if this fails. It may be
 * null if there are no elements. Arguments and errors are those of tally_all_reduce() and
 * tally_wait(). After TALLY_ERROR_TIMEOUT it cannot be waited for any more; the other ranks do
 * not notice. */
tally_error tally_all_reduce_array(tally_job *job, void *data, size_t elements, tally_dtype dtype, tally_op op,
                                   tally_arithmetic arithmetic, int priority, const char *name, uint32_t timeout_ms);

/* Leaves the job in order, when all that was submitted is done: every rank does that at its end.
 * Wait for what you want to know the results of before. Afterwards the job is closed, also if this
 * fails: free it. */
tally_error tally_finish(tally_job *job, uint32_t timeout_ms);

/* Leaves the job at once: it fails at all ranks, which are told that this one failed. Threads that
 * wait here get TALLY_ERROR_CLOSED. The job is to be freed all the same. Null is nothing. */
void tally_abort(tally_job *job);

/* Frees a job that no call is using. If it was not finished, this aborts it. Null is nothing. */
void tally_free(tally_job *job);

#ifdef __cplusplus
}
#endif

#endif
