// Bench of tally_lane_f32 against the addition of the CPU, a pair each cycle. Every pair of special
// values comes first, then random pairs of kinds that reach each stage's corner cases. Every NaN is
// expected as 0x7fc00000, as in the software.
//
//   lane_f32 SEED PAIRS

#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>

#include "Vtally_lane_f32.h"

namespace {

constexpr int LATENCY = 6;

constexpr uint32_t SPECIAL[] = {
    0x00000000, 0x00000001, 0x00000002, 0x00000003, 0x003fffff, 0x00400000, 0x007ffffe, 0x007fffff, 0x00800000,
    0x00800001, 0x00ffffff, 0x01000000, 0x01000001, 0x0b800000, 0x0c000000, 0x0c7fffff, 0x33000000, 0x337fffff,
    0x33800000, 0x33800001, 0x34000000, 0x34000001, 0x3effffff, 0x3f000000, 0x3f7fffff, 0x3f800000, 0x3f800001,
    0x3f800002, 0x3fffffff, 0x40000000, 0x4b7fffff, 0x4b800000, 0x72ffffff, 0x73000000, 0x737fffff, 0x73800000,
    0x7e800000, 0x7f000000, 0x7f7ffffe, 0x7f7fffff, 0x7f800000, 0x7f800001, 0x7fbfffff, 0x7fc00000, 0x7fc12345,
    0x7fffffff,
};
constexpr size_t SPECIALS = 2 * sizeof SPECIAL / sizeof *SPECIAL;

uint32_t special(size_t i) { return SPECIAL[i / 2] | static_cast<uint32_t>(i & 1) << 31; }

struct Pair {
    uint32_t a, b;
};

uint32_t expected(Pair p) {
    volatile float sum = std::bit_cast<float>(p.a) + std::bit_cast<float>(p.b);
    float value = sum;
    return value != value ? 0x7fc00000 : std::bit_cast<uint32_t>(value);
}

Pair drawn(std::mt19937_64 &dice) {
    const uint64_t both = dice(), die = dice();
    uint32_t a = static_cast<uint32_t>(both), b = static_cast<uint32_t>(both >> 32);
    const uint32_t small = static_cast<uint32_t>(die >> 8 & 0xff);
    const auto with_exponent = [](uint32_t value, uint32_t exponent) {
        return (value & 0x807fffff) | (exponent & 0xff) << 23;
    };
    switch (die & 7) {
    case 0:  // any values
        break;
    case 1:  // similar exponents
        b = with_exponent(b, (a >> 23) + small % 61 - 30);
        break;
    case 2: {  // few bits, so that ties occur
        const uint32_t mask = ~0u << small % 24;
        a &= mask;
        b = with_exponent(b & mask, (a >> 23) + (die >> 16) % 57 - 28);
        break;
    }
    case 3:  // almost or complete cancellation
        b = (a ^ 0x80000000) + small % 9 - 4;
        break;
    case 4:  // subnormals and their neighbours
        a = with_exponent(a, small % 28);
        b = with_exponent(b, static_cast<uint32_t>(die >> 16) % 28);
        break;
    case 5:  // the largest, infinities and NaNs
        a |= 0x7f000000;
        b |= 0x7e000000;
        break;
    case 6:  // any value and a special value
        b = special(small % SPECIALS);
        break;
    default:  // exponents 22 to 28 apart: only the sticky bit remains
        b = with_exponent(b, (a >> 23) + 22 + small % 7);
        break;
    }
    return {a, b};
}

}  // namespace

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    std::mt19937_64 dice(std::strtoull(argv[1], nullptr, 10));
    const size_t pairs = std::strtoull(argv[2], nullptr, 10);
    Vtally_lane_f32 lane;
    Pair under_way[LATENCY] = {};
    int wrong = 0;
    for (size_t i = 0; i < pairs + LATENCY - 1; i++) {
        const Pair pair = i < SPECIALS * SPECIALS ? Pair{special(i / SPECIALS), special(i % SPECIALS)} : drawn(dice);
        under_way[i % LATENCY] = pair;
        lane.a = pair.a;
        lane.b = pair.b;
        lane.clk = 0;
        lane.eval();
        lane.clk = 1;
        lane.eval();
        if (i < LATENCY - 1) continue;
        const Pair done = under_way[(i + 1) % LATENCY];
        if (lane.sum != expected(done) && wrong++ < 10)
            std::printf("%08x + %08x: sum %08x, expected %08x\n", done.a, done.b, lane.sum, expected(done));
    }
    std::printf("%zu pairs, %d wrong\n", pairs, wrong);
    return wrong != 0;
}
