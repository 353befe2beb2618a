// SPDX-License-Identifier: Apache-2.0
//
// The card: the core between the stream to the switch and the registers.
//
//   s_axis -> width -> tags -> core -> tags -> width -> m_axis
//                               |
//                      registers (AXI4-Lite)
//
// `tick` is high for one cycle each millisecond. `busy` is low while no frame is inside; a
// simulation may stop the clock then. The core has always 512 bits a beat; DATA_BITS is the width
// of the streams.

`default_nettype none

module tally_card #(
    parameter int SLOTS = 1024,         // a power of two
    parameter int PAYLOAD_BYTES = 1024, // 64 times a power of two, up to 8192
    parameter int JOBS = 8,             // loaded at a time
    parameter int MEMBERS = 16,         // most workers of a job; a power of two up to 64
    parameter int RING = 512,           // results kept for each job; a power of two
    parameter int F32 = 1,              // 1: with lanes for f32
    parameter int DATA_BITS = 512       // 64, 128, 256 or 512
) (
    input  wire logic                   clk,
    input  wire logic                   rst,
    input  wire logic                   tick,
    input  wire logic [DATA_BITS-1:0]   s_axis_tdata,
    input  wire logic [DATA_BITS/8-1:0] s_axis_tkeep,
    input  wire logic                   s_axis_tvalid,
    input  wire logic                   s_axis_tlast,
    input  wire logic                   s_axis_tuser, // with the last beat: the frame is bad
    output logic                        s_axis_tready,
    output logic      [DATA_BITS-1:0]   m_axis_tdata,
    output logic      [DATA_BITS/8-1:0] m_axis_tkeep,
    output logic                        m_axis_tvalid,
    output logic                        m_axis_tlast,
    input  wire logic                   m_axis_tready,
    input  wire logic [15:0]            s_axil_awaddr,
    input  wire logic                   s_axil_awvalid,
    output logic                        s_axil_awready,
    input  wire logic [31:0]            s_axil_wdata,
    input  wire logic [3:0]             s_axil_wstrb,
    input  wire logic                   s_axil_wvalid,
    output logic                        s_axil_wready,
    output logic      [1:0]             s_axil_bresp,
    output logic                        s_axil_bvalid,
    input  wire logic                   s_axil_bready,
    input  wire logic [15:0]            s_axil_araddr,
    input  wire logic                   s_axil_arvalid,
    output logic                        s_axil_arready,
    output logic      [31:0]            s_axil_rdata,
    output logic      [1:0]             s_axil_rresp,
    output logic                        s_axil_rvalid,
    input  wire logic                   s_axil_rready,
    output logic                        busy
);

  localparam int PLACE_BITS = JOBS > 1 ? $clog2(JOBS) : 1;

`ifndef SYNTHESIS
  initial begin
    assert (SLOTS >= 2 && SLOTS == 1 << $clog2(SLOTS)) else $fatal(1, "SLOTS: a power of two");
    assert (RING >= 2 && RING == 1 << $clog2(RING)) else $fatal(1, "RING: a power of two");
    assert (PAYLOAD_BYTES >= 64 && PAYLOAD_BYTES <= 8192 && PAYLOAD_BYTES == 1 << $clog2(PAYLOAD_BYTES))
    else $fatal(1, "PAYLOAD_BYTES: 64 to 8192, a power of two");
    assert (JOBS >= 1 && JOBS <= 255) else $fatal(1, "JOBS: 1 to 255");
    assert (MEMBERS >= 2 && MEMBERS <= 64 && MEMBERS == 1 << $clog2(MEMBERS)) else $fatal(1, "MEMBERS: 2 to 64, a power of two");
  end
`endif

  logic enable, clear_all, job_load, job_unload, member_child, member_store, counter_snapshot, clearing, fault, core_busy;
  logic [47:0] own_mac, member_mac;
  logic [31:0] own_ip, job_hash, member_ip, uptime;
  logic [15:0] base_port, shards, job_number, job_epoch, job_ports, member_udp_port, member_port;
  logic [7:0] job_select, job_units, job_workers, member_select;
  logic [64*tally_regs_pkg::COUNTERS-1:0] counters;

  always_ff @(posedge clk) uptime <= rst ? 32'd0 : uptime + 32'(tick);

  tally_regs #(
      .SLOTS(SLOTS), .PAYLOAD_BYTES(PAYLOAD_BYTES), .JOBS(JOBS), .MEMBERS(MEMBERS), .RING(RING), .F32(F32),
      .COUNTERS(tally_regs_pkg::COUNTERS)
  ) regs (
      .clk, .rst, .s_axil_awaddr, .s_axil_awvalid, .s_axil_awready, .s_axil_wdata, .s_axil_wstrb, .s_axil_wvalid, .s_axil_wready,
      .s_axil_bresp, .s_axil_bvalid, .s_axil_bready, .s_axil_araddr, .s_axil_arvalid, .s_axil_arready, .s_axil_rdata,
      .s_axil_rresp, .s_axil_rvalid, .s_axil_rready, .uptime, .clearing, .fault, .counters, .enable, .own_mac, .own_ip, .base_port,
      .shards, .job_select, .job_number, .job_epoch, .job_units, .job_workers, .job_ports, .job_hash, .member_select,
      .member_mac, .member_ip, .member_udp_port, .member_port, .member_child, .clear_all, .job_load, .job_unload, .member_store,
      .counter_snapshot
  );

  // In.
  logic [511:0] wide_tdata, in_tdata, out_tdata, tagged_tdata;
  logic [63:0] wide_tkeep, in_tkeep, out_tkeep, tagged_tkeep;
  logic wide_tvalid, in_tvalid, out_tvalid, tagged_tvalid;
  logic wide_tlast, in_tlast, out_tlast, tagged_tlast;
  logic wide_tready, in_tready, out_tready, tagged_tready;
  logic wide_tuser, unused_tuser;
  logic [16:0] in_tuser;
  logic [31:0] out_tuser;

  tally_width #(.IN_BITS(DATA_BITS), .OUT_BITS(512)) widen (
      .clk, .rst, .s_axis_tdata, .s_axis_tkeep, .s_axis_tvalid, .s_axis_tlast, .s_axis_tuser, .s_axis_tready,
      .m_axis_tdata(wide_tdata), .m_axis_tkeep(wide_tkeep), .m_axis_tvalid(wide_tvalid), .m_axis_tlast(wide_tlast),
      .m_axis_tuser(wide_tuser), .m_axis_tready(wide_tready)
  );

  tally_tags tags (
      .clk, .rst, .own_mac,
      .s_net_tdata(wide_tdata), .s_net_tkeep(wide_tkeep), .s_net_tvalid(wide_tvalid), .s_net_tlast(wide_tlast),
      .s_net_tuser(wide_tuser), .s_net_tready(wide_tready),
      .m_core_tdata(in_tdata), .m_core_tkeep(in_tkeep), .m_core_tvalid(in_tvalid), .m_core_tlast(in_tlast),
      .m_core_tuser(in_tuser), .m_core_tready(in_tready),
      .s_core_tdata(out_tdata), .s_core_tkeep(out_tkeep), .s_core_tvalid(out_tvalid), .s_core_tlast(out_tlast),
      .s_core_tuser(out_tuser), .s_core_tready(out_tready),
      .m_net_tdata(tagged_tdata), .m_net_tkeep(tagged_tkeep), .m_net_tvalid(tagged_tvalid), .m_net_tlast(tagged_tlast),
      .m_net_tready(tagged_tready)
  );

  wire is_place = 32'(job_select) < JOBS;

  tally_core #(
      .SLOTS(SLOTS), .PAYLOAD_BYTES(PAYLOAD_BYTES), .JOBS(JOBS), .MEMBERS(MEMBERS), .RING(RING), .F32(F32)
  ) core (
      .clk, .rst, .s_axis_tdata(in_tdata), .s_axis_tkeep(in_tkeep), .s_axis_tvalid(in_tvalid), .s_axis_tlast(in_tlast),
      .s_axis_tuser(in_tuser), .s_axis_tready(in_tready), .m_axis_tdata(out_tdata), .m_axis_tkeep(out_tkeep),
      .m_axis_tvalid(out_tvalid), .m_axis_tlast(out_tlast), .m_axis_tuser(out_tuser), .m_axis_tready(out_tready),
      .enable, .own_mac, .own_ip, .base_port, .shards, .clear_all, .job_select(job_select[PLACE_BITS-1:0]), .job_number,
      .job_epoch, .job_units, .job_workers, .job_ports, .job_hash, .job_load(job_load && is_place),
      .job_unload(job_unload && is_place), .member_store(member_store && is_place), .member_select, .member_mac, .member_ip,
      .member_udp_port, .member_port, .member_child, .counter_snapshot, .counters, .clearing, .fault, .busy(core_busy)
  );

  // Out.
  tally_width #(.IN_BITS(512), .OUT_BITS(DATA_BITS)) narrow (
      .clk, .rst, .s_axis_tdata(tagged_tdata), .s_axis_tkeep(tagged_tkeep), .s_axis_tvalid(tagged_tvalid),
      .s_axis_tlast(tagged_tlast), .s_axis_tuser(1'b0), .s_axis_tready(tagged_tready), .m_axis_tdata, .m_axis_tkeep, .m_axis_tvalid,
      .m_axis_tlast, .m_axis_tuser(unused_tuser), .m_axis_tready
  );

  assign busy = core_busy || wide_tvalid || in_tvalid || out_tvalid || tagged_tvalid || m_axis_tvalid;

endmodule

`default_nettype wire
