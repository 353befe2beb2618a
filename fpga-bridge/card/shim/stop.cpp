// What the RTL's assertions end in: the model's `fault`, and not the end of the process.

#include <verilated.h>

#include <string>

thread_local std::string tally_stopped;

static void stop(const char *what, const char *file, int line) {
    if (tally_stopped.empty()) tally_stopped = std::string(what) + " at " + file + ":" + std::to_string(line);
}

void vl_stop(const char *file, int line, const char *) VL_MT_UNSAFE { stop("an assertion failed", file, line); }

void vl_fatal(const char *file, int line, const char *, const char *message) VL_MT_UNSAFE {
    stop(message, file, line);
}
