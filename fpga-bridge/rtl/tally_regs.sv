// Generated from registers.json by `cargo run -p tally-bridge --example registers`: change that, not this.
//
// The registers of the card, behind AXI4-Lite.
//
// Whole words only. An address that is none, a write to what can only be read, a write of less than a word, and a
// command while a place is being cleared are answered SLVERR, and change nothing. Whatever is asked is answered within
// four cycles. A command is a strobe of one cycle; what it is about is in the other outputs in that cycle.

`default_nettype none

module tally_regs #(
  parameter int SLOTS = 1024,
  parameter int PAYLOAD_BYTES = 1024,
  parameter int JOBS = 8,
  parameter int MEMBERS = 16,
  parameter int RING = 512,
  parameter int F32 = 1,
  parameter int CLOCK_KHZ = 250000,
  parameter int COUNTERS = tally_regs_pkg::COUNTERS
) (
  input  wire logic        clk,
  input  wire logic        rst,

  input  wire logic [15:0] s_axil_awaddr,
  input  wire logic        s_axil_awvalid,
  output logic             s_axil_awready,
  input  wire logic [31:0] s_axil_wdata,
  input  wire logic [3:0]  s_axil_wstrb,
  input  wire logic        s_axil_wvalid,
  output logic             s_axil_wready,
  output logic [1:0]       s_axil_bresp,
  output logic             s_axil_bvalid,
  input  wire logic        s_axil_bready,
  input  wire logic [15:0] s_axil_araddr,
  input  wire logic        s_axil_arvalid,
  output logic             s_axil_arready,
  output logic [31:0]      s_axil_rdata,
  output logic [1:0]       s_axil_rresp,
  output logic             s_axil_rvalid,
  input  wire logic        s_axil_rready,

  // Milliseconds since reset. It moves as long as the card lives.
  input  wire logic [31:0] uptime,
  // A place is being cleared; commands are refused meanwhile.
  input  wire logic clearing,
  // An internal check has failed: no sum of this card can be trusted until it is reset.
  input  wire logic fault,
  // Counter n in bits 64n and above, as they were at the last `counter_snapshot`.
  input  wire logic [64*COUNTERS-1:0] counters,

  output logic enable,
  output logic [47:0] own_mac,
  output logic [31:0] own_ip,
  output logic [15:0] base_port,
  output logic [15:0] shards,
  output logic [7:0] job_select,
  output logic [15:0] job_number,
  output logic [15:0] job_epoch,
  output logic [7:0] job_units,
  output logic [7:0] job_workers,
  output logic [15:0] job_ports,
  output logic [31:0] job_hash,
  output logic [7:0] member_select,
  output logic [47:0] member_mac,
  output logic [31:0] member_ip,
  output logic [15:0] member_udp_port,
  output logic [15:0] member_port,
  output logic clear_all,
  output logic job_load,
  output logic job_unload,
  output logic member_store,
  output logic counter_snapshot
);

  localparam logic [1:0] OKAY = 2'b00;
  localparam logic [1:0] SLVERR = 2'b10;

  // Writes: address and data come in any order, and each waits for the other here.
  logic [15:0] write_address;
  logic [31:0] write_data;
  logic [3:0]  write_strobes;
  logic        has_address, has_data;

  wire do_write = has_address && has_data && !s_axil_bvalid;

  assign s_axil_awready = !has_address;
  assign s_axil_wready = !has_data;

  // Whether the address has something to write to, and whether the data is a command that has to wait.
  logic writable, refused;

  always_comb begin
    writable = 1'b0;
    refused = 1'b0;
    case (write_address)
      tally_regs_pkg::AT_CONTROL: begin
        writable = 1'b1;
        refused = clearing && write_data[1];
      end
      tally_regs_pkg::AT_OWN_MAC_HIGH: writable = 1'b1;
      tally_regs_pkg::AT_OWN_MAC_LOW: writable = 1'b1;
      tally_regs_pkg::AT_OWN_IP: writable = 1'b1;
      tally_regs_pkg::AT_BASE_PORT: writable = 1'b1;
      tally_regs_pkg::AT_SHARDS: writable = 1'b1;
      tally_regs_pkg::AT_JOB_SELECT: writable = 1'b1;
      tally_regs_pkg::AT_JOB_NUMBER: writable = 1'b1;
      tally_regs_pkg::AT_JOB_EPOCH: writable = 1'b1;
      tally_regs_pkg::AT_JOB_UNITS: writable = 1'b1;
      tally_regs_pkg::AT_JOB_WORKERS: writable = 1'b1;
      tally_regs_pkg::AT_JOB_PORTS: writable = 1'b1;
      tally_regs_pkg::AT_JOB_HASH: writable = 1'b1;
      tally_regs_pkg::AT_JOB_COMMAND: begin
        writable = 1'b1;
        refused = clearing && (write_data[0] || write_data[1]);
      end
      tally_regs_pkg::AT_MEMBER_SELECT: writable = 1'b1;
      tally_regs_pkg::AT_MEMBER_MAC_HIGH: writable = 1'b1;
      tally_regs_pkg::AT_MEMBER_MAC_LOW: writable = 1'b1;
      tally_regs_pkg::AT_MEMBER_IP: writable = 1'b1;
      tally_regs_pkg::AT_MEMBER_UDP_PORT: writable = 1'b1;
      tally_regs_pkg::AT_MEMBER_PORT: writable = 1'b1;
      tally_regs_pkg::AT_MEMBER_COMMAND: begin
        writable = 1'b1;
        refused = clearing && write_data[0];
      end
      tally_regs_pkg::AT_COUNTER_SNAPSHOT: writable = 1'b1;
      default: ;
    endcase
  end

  wire accepted = do_write && writable && !refused && write_strobes == 4'hf;

  always_ff @(posedge clk) begin
    if (rst) begin
      has_address <= 1'b0;
      has_data <= 1'b0;
      s_axil_bvalid <= 1'b0;
      s_axil_bresp <= OKAY;
    end else begin
      if (s_axil_awvalid && s_axil_awready) has_address <= 1'b1;
      if (s_axil_wvalid && s_axil_wready) has_data <= 1'b1;
      if (s_axil_bvalid && s_axil_bready) s_axil_bvalid <= 1'b0;
      if (do_write) begin
        has_address <= 1'b0;
        has_data <= 1'b0;
        s_axil_bvalid <= 1'b1;
        s_axil_bresp <= accepted ? OKAY : SLVERR;
      end
    end
    if (s_axil_awvalid && s_axil_awready) write_address <= s_axil_awaddr;
    if (s_axil_wvalid && s_axil_wready) begin
      write_data <= s_axil_wdata;
      write_strobes <= s_axil_wstrb;
    end
  end

  always_ff @(posedge clk) begin
    clear_all <= !rst && accepted && write_address == tally_regs_pkg::AT_CONTROL && write_data[1];
    job_load <= !rst && accepted && write_address == tally_regs_pkg::AT_JOB_COMMAND && write_data[0];
    job_unload <= !rst && accepted && write_address == tally_regs_pkg::AT_JOB_COMMAND && write_data[1];
    member_store <= !rst && accepted && write_address == tally_regs_pkg::AT_MEMBER_COMMAND && write_data[0];
    counter_snapshot <= !rst && accepted && write_address == tally_regs_pkg::AT_COUNTER_SNAPSHOT && write_data[0];
    if (rst) begin
      base_port <= 0;
      enable <= 0;
      job_epoch <= 0;
      job_hash <= 0;
      job_number <= 0;
      job_ports <= 0;
      job_select <= 0;
      job_units <= 0;
      job_workers <= 0;
      member_ip <= 0;
      member_mac <= 0;
      member_port <= 0;
      member_select <= 0;
      member_udp_port <= 0;
      own_ip <= 0;
      own_mac <= 0;
      shards <= 0;
    end else if (accepted) begin
      case (write_address)
        tally_regs_pkg::AT_CONTROL: enable <= write_data[0];
        tally_regs_pkg::AT_OWN_MAC_HIGH: own_mac[47:32] <= write_data[15:0];
        tally_regs_pkg::AT_OWN_MAC_LOW: own_mac[31:0] <= write_data;
        tally_regs_pkg::AT_OWN_IP: own_ip <= write_data;
        tally_regs_pkg::AT_BASE_PORT: base_port <= write_data[15:0];
        tally_regs_pkg::AT_SHARDS: shards <= write_data[15:0];
        tally_regs_pkg::AT_JOB_SELECT: job_select <= write_data[7:0];
        tally_regs_pkg::AT_JOB_NUMBER: job_number <= write_data[15:0];
        tally_regs_pkg::AT_JOB_EPOCH: job_epoch <= write_data[15:0];
        tally_regs_pkg::AT_JOB_UNITS: job_units <= write_data[7:0];
        tally_regs_pkg::AT_JOB_WORKERS: job_workers <= write_data[7:0];
        tally_regs_pkg::AT_JOB_PORTS: job_ports <= write_data[15:0];
        tally_regs_pkg::AT_JOB_HASH: job_hash <= write_data;
        tally_regs_pkg::AT_MEMBER_SELECT: member_select <= write_data[7:0];
        tally_regs_pkg::AT_MEMBER_MAC_HIGH: member_mac[47:32] <= write_data[15:0];
        tally_regs_pkg::AT_MEMBER_MAC_LOW: member_mac[31:0] <= write_data;
        tally_regs_pkg::AT_MEMBER_IP: member_ip <= write_data;
        tally_regs_pkg::AT_MEMBER_UDP_PORT: member_udp_port <= write_data[15:0];
        tally_regs_pkg::AT_MEMBER_PORT: member_port <= write_data[15:0];
        default: ;
      endcase
    end
  end

  // Reads: the address is taken, then looked up, then answered.
  logic [15:0] read_address;
  logic        is_reading;

  assign s_axil_arready = !is_reading && !s_axil_rvalid;

  logic [31:0] found;
  logic        readable;

  wire [15:0] counter_offset = read_address - tally_regs_pkg::AT_COUNTERS;
  wire is_counter = read_address >= tally_regs_pkg::AT_COUNTERS
      && counter_offset[1:0] == 2'b00
      && {18'b0, counter_offset[15:2]} < 2 * COUNTERS;

  always_comb begin
    found = 32'b0;
    readable = 1'b1;
    case (read_address)
      tally_regs_pkg::AT_ID: found = tally_regs_pkg::ID;
      tally_regs_pkg::AT_INTERFACE: found = tally_regs_pkg::INTERFACE;
      tally_regs_pkg::AT_SLOTS: found = SLOTS;
      tally_regs_pkg::AT_PAYLOAD_BYTES: found = PAYLOAD_BYTES;
      tally_regs_pkg::AT_JOBS: found = JOBS;
      tally_regs_pkg::AT_MEMBERS: found = MEMBERS;
      tally_regs_pkg::AT_RING: found = RING;
      tally_regs_pkg::AT_FEATURES: found[0] = F32 != 0;
      tally_regs_pkg::AT_CLOCK_KHZ: found = CLOCK_KHZ;
      tally_regs_pkg::AT_UPTIME: found = uptime;
      tally_regs_pkg::AT_STATUS: begin
        found[0] = clearing;
        found[1] = fault;
      end
      tally_regs_pkg::AT_CONTROL: found[0] = enable;
      tally_regs_pkg::AT_OWN_MAC_HIGH: found[15:0] = own_mac[47:32];
      tally_regs_pkg::AT_OWN_MAC_LOW: found = own_mac[31:0];
      tally_regs_pkg::AT_OWN_IP: found = own_ip;
      tally_regs_pkg::AT_BASE_PORT: found[15:0] = base_port;
      tally_regs_pkg::AT_SHARDS: found[15:0] = shards;
      tally_regs_pkg::AT_JOB_SELECT: found[7:0] = job_select;
      tally_regs_pkg::AT_JOB_NUMBER: found[15:0] = job_number;
      tally_regs_pkg::AT_JOB_EPOCH: found[15:0] = job_epoch;
      tally_regs_pkg::AT_JOB_UNITS: found[7:0] = job_units;
      tally_regs_pkg::AT_JOB_WORKERS: found[7:0] = job_workers;
      tally_regs_pkg::AT_JOB_PORTS: found[15:0] = job_ports;
      tally_regs_pkg::AT_JOB_HASH: found = job_hash;
      tally_regs_pkg::AT_JOB_COMMAND: ;
      tally_regs_pkg::AT_MEMBER_SELECT: found[7:0] = member_select;
      tally_regs_pkg::AT_MEMBER_MAC_HIGH: found[15:0] = member_mac[47:32];
      tally_regs_pkg::AT_MEMBER_MAC_LOW: found = member_mac[31:0];
      tally_regs_pkg::AT_MEMBER_IP: found = member_ip;
      tally_regs_pkg::AT_MEMBER_UDP_PORT: found[15:0] = member_udp_port;
      tally_regs_pkg::AT_MEMBER_PORT: found[15:0] = member_port;
      tally_regs_pkg::AT_MEMBER_COMMAND: ;
      tally_regs_pkg::AT_COUNTER_SNAPSHOT: ;
      default: begin
        readable = is_counter;
        if (is_counter) found = counters[32 * counter_offset[15:2] +: 32];
      end
    endcase
  end

  always_ff @(posedge clk) begin
    if (rst) begin
      is_reading <= 1'b0;
      s_axil_rvalid <= 1'b0;
      s_axil_rresp <= OKAY;
      s_axil_rdata <= 32'b0;
    end else begin
      if (s_axil_arvalid && s_axil_arready) is_reading <= 1'b1;
      if (s_axil_rvalid && s_axil_rready) s_axil_rvalid <= 1'b0;
      if (is_reading) begin
        is_reading <= 1'b0;
        s_axil_rvalid <= 1'b1;
        s_axil_rresp <= readable ? OKAY : SLVERR;
        s_axil_rdata <= found;
      end
    end
    if (s_axil_arvalid && s_axil_arready) read_address <= s_axil_araddr;
  end

`ifndef SYNTHESIS
  // A command is about what was written before it, and is never given while it could not be taken.
  logic was_clearing;
  always_ff @(posedge clk) begin
    was_clearing <= clearing;
    if (!rst) assert (!(was_clearing && (clear_all || job_load || job_unload || member_store)));
  end
  initial begin
    assert (COUNTERS == tally_regs_pkg::COUNTERS) else $fatal(1, "COUNTERS is not that of registers.json");
    assert (JOBS >= 1 && JOBS <= 32) else $fatal(1, "JOBS must be 1 to 32");
    assert (MEMBERS >= 2 && MEMBERS <= 64) else $fatal(1, "MEMBERS must be 2 to 64");
  end
`endif

endmodule

`default_nettype wire
