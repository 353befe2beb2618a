// What Rust sees of a compiled model: a table of functions. `src/ffi.rs` has the same.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

/// What the RTL was compiled with.
struct TallyParameters {
    uint32_t slots, payload_bytes, jobs, members, ring, f32, data_bits;
};

/// How the streams are driven. Of 256 cycles in which a beat could be offered, `input` begin a gap;
/// in which one could be taken, `output` begin a stall. A gap or stall continues with `longer` of
/// 256.
struct TallyGaps {
    uint8_t input, output, longer;
};

/// What went by.
struct TallyStatistics {
    /// Cycles since the start.
    uint64_t cycles;
    /// Frames and beats that were taken, and the cycle of the last beat.
    uint64_t frames_in, beats_in, last_in;
    /// Cycles in which a beat was offered and not taken.
    uint64_t stalls_in;
    /// The same of what came out.
    uint64_t frames_out, beats_out, last_out;
};

/// Of a frame: how its beats break the rules of the stream.
enum TallyFlaw : uint8_t {
    TALLY_SOUND = 0,
    /// tuser with the last beat: the frame check sequence was wrong.
    TALLY_BAD = 1,
    /// A beat before the last one lacks its last byte.
    TALLY_SHORT_BEAT = 2,
    /// The last beat lacks a byte within.
    TALLY_HOLE = 3,
};

struct TallyApi {
    TallyParameters (*parameters)();
    void *(*create)(uint64_t seed);
    void (*destroy)(void *);
    void (*offer)(void *, const uint8_t *frame, size_t bytes, uint8_t flaw);
    /// Frames that are not yet in the card.
    size_t (*pending)(const void *);
    /// Bytes of the next frame that came out; 0: none.
    size_t (*next_bytes)(const void *);
    /// Copies it to `out`, which has room for it, and forgets it.
    void (*take)(void *, uint8_t *out);
    bool (*is_busy)(const void *);
    /// One cycle.
    void (*clock)(void *);
    /// Cycles until `frames_in` have been taken in all and, if `until_idle`, nothing waits and
    /// nothing is inside; at most `limit`. Returns how many it took.
    uint64_t (*run)(void *, uint64_t limit, uint64_t frames_in, bool until_idle);
    /// Cycles with `tick`.
    void (*tick)(void *, uint32_t ticks);
    /// 0: done. 1: answered with an error. 2: no answer.
    int (*read)(void *, uint16_t address, uint32_t *value);
    int (*write)(void *, uint16_t address, uint32_t value);
    void (*set_gaps)(void *, TallyGaps, uint64_t seed);
    TallyStatistics (*statistics)(const void *);
    /// What is wrong with the model, a C string; null: nothing. Stays until `destroy`.
    const char *(*fault)(const void *);
    /// False: not compiled in, or the file cannot be written.
    bool (*trace)(void *, const char *path);
    bool (*write_coverage)(void *, const char *path);
};
}
