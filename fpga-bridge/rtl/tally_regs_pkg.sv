// Generated from registers.json by `cargo run -p tally-bridge --example registers`: change that, not this.
// Addresses of the registers, and which counter is where among them.

/* verilator lint_off UNUSEDPARAM */
package tally_regs_pkg;

  localparam logic [31:0] ID = 32'h54414c59;
  localparam logic [31:0] INTERFACE = 32'd2;

  localparam logic [15:0] AT_ID = 16'h0000;
  localparam logic [15:0] AT_INTERFACE = 16'h0004;
  localparam logic [15:0] AT_SLOTS = 16'h0008;
  localparam logic [15:0] AT_PAYLOAD_BYTES = 16'h000c;
  localparam logic [15:0] AT_JOBS = 16'h0010;
  localparam logic [15:0] AT_MEMBERS = 16'h0014;
  localparam logic [15:0] AT_RING = 16'h0018;
  localparam logic [15:0] AT_FEATURES = 16'h001c;
  localparam logic [15:0] AT_CLOCK_KHZ = 16'h0020;
  localparam logic [15:0] AT_UPTIME = 16'h0024;
  localparam logic [15:0] AT_STATUS = 16'h0028;
  localparam logic [15:0] AT_CONTROL = 16'h002c;
  localparam logic [15:0] AT_OWN_MAC_HIGH = 16'h0040;
  localparam logic [15:0] AT_OWN_MAC_LOW = 16'h0044;
  localparam logic [15:0] AT_OWN_IP = 16'h0048;
  localparam logic [15:0] AT_BASE_PORT = 16'h004c;
  localparam logic [15:0] AT_SHARDS = 16'h0050;
  localparam logic [15:0] AT_JOB_SELECT = 16'h0080;
  localparam logic [15:0] AT_JOB_NUMBER = 16'h0084;
  localparam logic [15:0] AT_JOB_EPOCH = 16'h0088;
  localparam logic [15:0] AT_JOB_UNITS = 16'h008c;
  localparam logic [15:0] AT_JOB_WORKERS = 16'h0090;
  localparam logic [15:0] AT_JOB_PORTS = 16'h0094;
  localparam logic [15:0] AT_JOB_HASH = 16'h0098;
  localparam logic [15:0] AT_JOB_COMMAND = 16'h009c;
  localparam logic [15:0] AT_MEMBER_SELECT = 16'h00c0;
  localparam logic [15:0] AT_MEMBER_MAC_HIGH = 16'h00c4;
  localparam logic [15:0] AT_MEMBER_MAC_LOW = 16'h00c8;
  localparam logic [15:0] AT_MEMBER_IP = 16'h00cc;
  localparam logic [15:0] AT_MEMBER_UDP_PORT = 16'h00d0;
  localparam logic [15:0] AT_MEMBER_PORT = 16'h00d4;
  localparam logic [15:0] AT_MEMBER_COMMAND = 16'h00d8;
  localparam logic [15:0] AT_COUNTER_SNAPSHOT = 16'h0100;
  localparam logic [15:0] AT_COUNTERS = 16'h0400;

  localparam int COUNTERS = 51;

  // What the engine in software counts by the same names
  localparam int COUNT_CONTRIBUTIONS = 0;
  localparam int COUNT_SLOTS_TAKEN = 1;
  localparam int COUNT_RESULTS = 2;
  localparam int COUNT_RESULTS_FROM_PS = 3;
  localparam int COUNT_RESULTS_AGAIN = 4;
  localparam int COUNT_PREEMPTIONS = 5;
  localparam int COUNT_ABANDONED = 6;
  localparam int COUNT_FOLLOWED = 7;
  localparam int COUNT_COLLISIONS = 8;
  localparam int COUNT_RESENDS_TO_PS = 9;
  localparam int COUNT_HELD_FULL = 10;
  localparam int COUNT_PARTIALS = 11;
  localparam int COUNT_REMINDS = 12;
  localparam int COUNT_NACKS = 13;
  localparam int COUNT_PROBES = 14;
  localparam int COUNT_PROBE_NACKS = 15;
  localparam int COUNT_RESULTS_FROM_WORKERS = 16;
  localparam int COUNT_OVERFLOWS = 17;

  // Frames dropped, by reason
  localparam int DROP_TRUNCATED = 18;
  localparam int DROP_IP_VERSION = 19;
  localparam int DROP_IP_OPTIONS = 20;
  localparam int DROP_IP_FRAGMENT = 21;
  localparam int DROP_IP_LENGTH = 22;
  localparam int DROP_UDP_LENGTH = 23;
  localparam int DROP_HEADER_TRUNCATED = 24;
  localparam int DROP_VERSION = 25;
  localparam int DROP_TYPE = 26;
  localparam int DROP_RESERVED_BITS = 27;
  localparam int DROP_ELEMENT_TYPE = 28;
  localparam int DROP_PAYLOAD_LENGTH = 29;
  localparam int DROP_RANK_RANGE = 30;
  localparam int DROP_BITMAP = 31;
  localparam int DROP_NOT_FOR_SWITCH = 32;
  localparam int DROP_STALE_EPOCH = 33;
  localparam int DROP_RANK_OUT_OF_JOB = 34;
  localparam int DROP_NOT_A_MEMBER = 35;
  localparam int DROP_WRONG_SHARD = 36;
  localparam int DROP_UNITS_MISMATCH = 37;
  localparam int DROP_ELEMENT_MISMATCH = 38;
  localparam int DROP_DUPLICATE = 39;
  localparam int DROP_LATE = 40;
  localparam int DROP_SPOOFED_SWITCH = 41;
  localparam int DROP_STREAM_ERROR = 42;
  localparam int DROP_STREAM_OVERSIZE = 43;
  localparam int DROP_STREAM_KEEP = 44;

  // The streams
  localparam int STREAM_FRAMES_IN = 45;
  localparam int STREAM_BEATS_IN = 46;
  localparam int STREAM_FRAMES_OUT = 47;
  localparam int STREAM_BEATS_OUT = 48;
  localparam int STREAM_PASSED = 49;
  localparam int STREAM_STALLS = 50;

endpackage
/* verilator lint_on UNUSEDPARAM */
