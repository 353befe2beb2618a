// Drives the pins of a model, a cycle at a time, and checks what the streams promise.
//
// One cycle is two evaluations: inputs change with the falling edge of the clock, after which all
// that follows from them without a register is settled and handshakes are read; then comes the
// rising edge.

#include "shim.h"

#include MODEL_HEADER

#include <verilated.h>
#if VM_TRACE
#include <verilated_fst_c.h>
#endif
#if VM_COVERAGE
#include <verilated_cov.h>
#endif

#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <vector>

// One for all models of a thread: which of them failed, its caller knows.
extern thread_local std::string tally_stopped;

namespace {

constexpr size_t BEAT = RTL_DATA_BITS / 8;
constexpr uint64_t ALL_LANES = BEAT == 64 ? ~uint64_t{0} : (uint64_t{1} << BEAT % 64) - 1;
// A register is answered within so many cycles.
constexpr int REGISTER_CYCLES = 1000;
constexpr int RESET_CYCLES = 8;

static_assert(sizeof(decltype(MODEL::s_axis_tdata)) == BEAT, "little-endian lanes without padding");

uint64_t lanes(size_t bytes) { return bytes >= 64 ? ~uint64_t{0} : (uint64_t{1} << bytes) - 1; }

struct Random {
    uint64_t state = 1;
    // Xorshift (Marsaglia, 2003).
    uint64_t next() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        return state;
    }
    bool chance(uint8_t of256) { return of256 != 0 && (next() >> 32 & 0xff) < of256; }
};

struct Span {
    size_t at, bytes;
    uint8_t flaw;
};

/// Frames one behind the other in one vector, which starts anew when all are gone.
struct Frames {
    std::vector<uint8_t> bytes;
    std::deque<Span> spans;

    void push(const uint8_t *frame, size_t count, uint8_t flaw) {
        spans.push_back({bytes.size(), count, flaw});
        bytes.insert(bytes.end(), frame, frame + count);
    }
    void pop() {
        spans.pop_front();
        if (spans.empty()) bytes.clear();
    }
};

class Card {
  public:
    explicit Card(uint64_t seed) {
        context.randReset(2);
        context.randSeed(static_cast<int>(seed & 0x7fffffff));
        Verilated::threadContextp(&context);
        tally_stopped.clear();
        top = std::make_unique<MODEL>(&context);
        top->clk = 0;
        top->rst = 1;
        top->tick = 0;
        top->s_axis_tvalid = 0;
        top->m_axis_tready = 0;
        top->s_axil_awvalid = top->s_axil_wvalid = top->s_axil_bready = 0;
        top->s_axil_arvalid = top->s_axil_rready = 0;
        for (int i = 0; i < RESET_CYCLES; i++) edge();
        top->rst = 0;
    }

    ~Card() {
        Verilated::threadContextp(&context);
#if VM_TRACE
        if (wave) wave->close();
#endif
        top->final();
    }

    void clock() {
        enter();
        cycle();
    }

    uint64_t run(uint64_t limit, uint64_t frames, bool until_idle) {
        enter();
        const uint64_t start = statistics.cycles;
        while (statistics.cycles - start < limit && fault.empty()) {
            if (statistics.frames_in >= frames && (!until_idle || (input.spans.empty() && !top->busy))) break;
            cycle();
        }
        return statistics.cycles - start;
    }

    void tick(uint32_t ticks) {
        enter();
        top->tick = 1;
        for (uint32_t i = 0; i < ticks; i++) cycle();
        top->tick = 0;
    }

    int read(uint16_t address, uint32_t *value) {
        enter();
        top->s_axil_araddr = address;
        top->s_axil_arvalid = 1;
        top->s_axil_rready = 1;
        int answer = 2;
        for (int i = 0; i < REGISTER_CYCLES && answer == 2; i++) {
            settle();
            const bool asked = top->s_axil_arvalid && top->s_axil_arready;
            if (top->s_axil_rvalid) {
                *value = top->s_axil_rdata;
                answer = top->s_axil_rresp == 0 ? 0 : 1;
            }
            finish();
            if (asked) top->s_axil_arvalid = 0;
        }
        top->s_axil_arvalid = top->s_axil_rready = 0;
        return answer;
    }

    int write(uint16_t address, uint32_t value) {
        enter();
        top->s_axil_awaddr = address;
        top->s_axil_wdata = value;
        top->s_axil_wstrb = 0xf;
        top->s_axil_awvalid = top->s_axil_wvalid = top->s_axil_bready = 1;
        int answer = 2;
        for (int i = 0; i < REGISTER_CYCLES && answer == 2; i++) {
            settle();
            const bool addressed = top->s_axil_awvalid && top->s_axil_awready;
            const bool written = top->s_axil_wvalid && top->s_axil_wready;
            if (top->s_axil_bvalid) answer = top->s_axil_bresp == 0 ? 0 : 1;
            finish();
            if (addressed) top->s_axil_awvalid = 0;
            if (written) top->s_axil_wvalid = 0;
        }
        top->s_axil_awvalid = top->s_axil_wvalid = top->s_axil_bready = 0;
        return answer;
    }

    bool trace(const char *path) {
#if VM_TRACE
        context.traceEverOn(true);
        wave = std::make_unique<VerilatedFstC>();
        top->trace(wave.get(), 99);
        wave->open(path);
        return wave->isOpen();
#else
        (void)path;
        return false;
#endif
    }

    bool write_coverage(const char *path) {
#if VM_COVERAGE
        context.coveragep()->write(path);
        return true;
#else
        (void)path;
        return false;
#endif
    }

    bool is_busy() const { return top->busy; }

    Frames input, output;
    TallyGaps gaps{};
    Random random;
    TallyStatistics statistics{};
    std::string fault;

  private:
    void enter() { Verilated::threadContextp(&context); }

    void edge() {
        top->eval();
        dump();
        top->clk = 1;
        top->eval();
        dump();
        top->clk = 0;
    }

    void dump() {
        context.timeInc(2);
#if VM_TRACE
        if (wave) wave->dump(context.time());
#endif
    }

    void cycle() {
        settle();
        finish();
    }

    // The first half of a cycle: inputs change, and outputs follow.
    void settle() {
        if (!top->s_axis_tvalid && !input.spans.empty()) {
            in_gap = random.chance(in_gap ? gaps.longer : gaps.input);
            if (!in_gap) offer_beat();
        }
        in_stall = random.chance(in_stall ? gaps.longer : gaps.output);
        top->m_axis_tready = !in_stall;
        top->eval();
        dump();
        took = top->s_axis_tvalid && top->s_axis_tready;
        statistics.stalls_in += top->s_axis_tvalid && !top->s_axis_tready;
        watch_output();
    }

    // The second half: the rising edge.
    void finish() {
        top->clk = 1;
        top->eval();
        dump();
        top->clk = 0;
        if (took) advance();
        statistics.cycles++;
        if (!tally_stopped.empty() && fault.empty()) fault = tally_stopped;
    }

    void offer_beat() {
        const Span &frame = input.spans.front();
        const size_t left = frame.bytes - sent;
        const size_t count = left < BEAT ? left : BEAT;
        const bool last = left <= BEAT;
        alignas(8) uint8_t beat[BEAT];
        std::memcpy(beat, input.bytes.data() + frame.at + sent, count);
        // Lanes that are not valid have anything.
        if (count < BEAT) std::memset(beat + count, static_cast<int>(random.state & 0xff), BEAT - count);
        std::memcpy(&top->s_axis_tdata, beat, BEAT);
        uint64_t keep = lanes(count);
        if (frame.flaw == TALLY_SHORT_BEAT && sent == 0 && !last) keep >>= 1;
        if (frame.flaw == TALLY_HOLE && last && count > 2) keep &= ~(uint64_t{1} << (count / 2));
        top->s_axis_tkeep = keep;
        top->s_axis_tlast = last;
        top->s_axis_tuser = last && frame.flaw == TALLY_BAD;
        top->s_axis_tvalid = 1;
    }

    void advance() {
        statistics.beats_in++;
        statistics.last_in = statistics.cycles;
        top->s_axis_tvalid = 0;
        sent += BEAT;
        if (!top->s_axis_tlast) return;
        sent = 0;
        statistics.frames_in++;
        input.pop();
    }

    // Takes a beat, if there is one, and holds the stream to its rules.
    void watch_output() {
        if (!top->m_axis_tvalid) {
            if (held) fail("m_axis_tvalid fell before m_axis_tready");
            return;
        }
        const bool is_other = std::memcmp(beat, &top->m_axis_tdata, BEAT) != 0 || keep != top->m_axis_tkeep ||
                              last != top->m_axis_tlast;
        if (held && is_other) fail("m_axis changed before m_axis_tready");
        std::memcpy(beat, &top->m_axis_tdata, BEAT);
        keep = top->m_axis_tkeep;
        last = top->m_axis_tlast;
        held = !top->m_axis_tready;
        if (held) return;
        statistics.beats_out++;
        statistics.last_out = statistics.cycles;
        size_t count = 0;
        while (count < BEAT && (keep >> count & 1) != 0) count++;
        if ((last && keep != lanes(count)) || (!last && keep != ALL_LANES)) fail("m_axis_tkeep");
        if (is_first) output.spans.push_back({output.bytes.size(), 0, 0});
        is_first = last;
        output.bytes.insert(output.bytes.end(), beat, beat + count);
        output.spans.back().bytes += count;
        if (last) {
            statistics.frames_out++;
            whole++;
        }
    }

    void fail(const char *what) {
        if (fault.empty()) fault = std::string(what) + ", cycle " + std::to_string(statistics.cycles);
    }

    VerilatedContext context;
    std::unique_ptr<MODEL> top;
#if VM_TRACE
    std::unique_ptr<VerilatedFstC> wave;
#endif
    size_t sent = 0;
    bool took = false, in_gap = false, in_stall = false;
    // The beat on offer at the output.
    alignas(8) uint8_t beat[BEAT] = {};
    uint64_t keep = 0;
    bool last = false, held = false, is_first = true;

  public:
    // Frames in `output` that are complete.
    size_t whole = 0;
};

Card *of(void *card) { return static_cast<Card *>(card); }
const Card *of(const void *card) { return static_cast<const Card *>(card); }

const TallyApi API = {
    []() -> TallyParameters {
        return {RTL_SLOTS, RTL_PAYLOAD_BYTES, RTL_JOBS, RTL_MEMBERS, RTL_RING, RTL_F32, RTL_DATA_BITS};
    },
    [](uint64_t seed) -> void * { return new Card(seed); },
    [](void *card) { delete of(card); },
    [](void *card, const uint8_t *frame, size_t bytes, uint8_t flaw) { of(card)->input.push(frame, bytes, flaw); },
    [](const void *card) { return of(card)->input.spans.size(); },
    [](const void *card) { return of(card)->whole == 0 ? 0 : of(card)->output.spans.front().bytes; },
    [](void *card, uint8_t *out) {
        Frames &output = of(card)->output;
        const Span &frame = output.spans.front();
        std::memcpy(out, output.bytes.data() + frame.at, frame.bytes);
        output.pop();
        of(card)->whole--;
    },
    [](const void *card) { return of(card)->is_busy(); },
    [](void *card) { of(card)->clock(); },
    [](void *card, uint64_t limit, uint64_t frames, bool until_idle) {
        return of(card)->run(limit, frames, until_idle);
    },
    [](void *card, uint32_t ticks) { of(card)->tick(ticks); },
    [](void *card, uint16_t address, uint32_t *value) { return of(card)->read(address, value); },
    [](void *card, uint16_t address, uint32_t value) { return of(card)->write(address, value); },
    [](void *card, TallyGaps gaps, uint64_t seed) {
        of(card)->gaps = gaps;
        of(card)->random.state = seed | 1;
    },
    [](const void *card) { return of(card)->statistics; },
    [](const void *card) { return of(card)->fault.empty() ? nullptr : of(card)->fault.c_str(); },
    [](void *card, const char *path) { return of(card)->trace(path); },
    [](void *card, const char *path) { return of(card)->write_coverage(path); },
};

} // namespace

extern "C" const TallyApi *MODEL_API() { return &API; }
