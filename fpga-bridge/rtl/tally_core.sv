// SPDX-License-Identifier: Apache-2.0
//
// The aggregation pipeline: frames in, frames out, 64 bytes a cycle.
//
//   ingress -> parser -> admission -> slots -> payload -> egress
//      |                                         ^
//      +------------- beats of frames -----------+
//
// Headers run ahead: the verdict on a frame is made before the payload stage meets the frame's
// beats. Both streams have the same order. Parser and admission never stall: a frame enters them
// only if the queue in front of the slots has space for it.

`default_nettype none

module tally_core #(
    parameter int SLOTS = 1024,
    parameter int PAYLOAD_BYTES = 1024,
    parameter int JOBS = 8,
    parameter int MEMBERS = 16,
    parameter int RING = 512,
    parameter int F32 = 1,
    localparam int PLACE_BITS = JOBS > 1 ? $clog2(JOBS) : 1,
    localparam int MEMBER_BITS = $clog2(MEMBERS) + 1
) (
    input  wire logic clk,
    input  wire logic rst,
    // Frames. tuser in: {bad, port that the frame came in by}; out: see tally_egress.
    input  wire logic [511:0] s_axis_tdata,
    input  wire logic [63:0]  s_axis_tkeep,
    input  wire logic         s_axis_tvalid,
    input  wire logic         s_axis_tlast,
    input  wire logic [16:0]  s_axis_tuser,
    output logic              s_axis_tready,
    output logic      [511:0] m_axis_tdata,
    output logic      [63:0]  m_axis_tkeep,
    output logic              m_axis_tvalid,
    output logic              m_axis_tlast,
    output logic      [31:0]  m_axis_tuser,
    input  wire logic         m_axis_tready,
    // Configuration and commands.
    input  wire logic        enable,
    input  wire logic [47:0] own_mac,
    input  wire logic [31:0] own_ip,
    input  wire logic [15:0] base_port,
    input  wire logic [15:0] shards,
    input  wire logic        clear_all,
    input  wire logic [PLACE_BITS-1:0] job_select,
    input  wire logic [15:0] job_number,
    input  wire logic [15:0] job_epoch,
    input  wire logic [7:0]  job_units,
    input  wire logic [7:0]  job_workers,
    input  wire logic [15:0] job_ports,
    input  wire logic [31:0] job_hash,
    input  wire logic        job_load,
    input  wire logic        job_unload,
    input  wire logic        member_store,
    input  wire logic [7:0]  member_select, // a rank, or 255: the PS
    input  wire logic [47:0] member_mac,
    input  wire logic [31:0] member_ip,
    input  wire logic [15:0] member_udp_port,
    input  wire logic [15:0] member_port,
    input  wire logic        member_child,
    input  wire logic        counter_snapshot,
    output logic      [64*tally_regs_pkg::COUNTERS-1:0] counters,
    output logic             clearing, // a command is being executed
    output logic             fault,    // an internal check failed
    output logic             busy      // a frame is inside, or a command is being executed
);

  localparam int MAX_FRAME = 64 + PAYLOAD_BYTES > 1600 ? 64 + PAYLOAD_BYTES : 1600;
  localparam int SLOT_BITS = $clog2(SLOTS);
  localparam int ROW_BITS = PLACE_BITS + $clog2(RING);
  localparam int HEAD_BITS = tally_pkg::HEAD_FIXED_BITS + MEMBERS + PLACE_BITS;
  localparam int ADMITTED = 16; // frames between the ingress and the slots

  // ---- Jobs and members.
  logic hold, quiet, walk, walk_all, walked;
  logic [PLACE_BITS-1:0] walk_place;
  logic [JOBS-1:0] live;
  logic [16*JOBS-1:0] numbers, epochs, ports;
  logic [8*JOBS-1:0] all_units, all_workers;
  logic [MEMBERS*JOBS-1:0] alls;
  logic [32*JOBS-1:0] hashes;

  tally_jobs #(.JOBS(JOBS), .MEMBERS(MEMBERS)) jobs (
      .clk, .rst, .clear_all, .load(job_load), .unload(job_unload), .select(job_select), .number(job_number), .epoch(job_epoch),
      .units(job_units), .workers(job_workers), .ports(job_ports), .hash(job_hash), .busy(clearing), .hold, .quiet, .walk, .walk_all,
      .walk_place, .walked, .live, .job_number(numbers), .job_epoch(epochs), .job_units(all_units), .job_workers(all_workers),
      .job_all(alls), .job_ports(ports), .job_hash(hashes)
  );

  wire member_is_ps = member_select == tally_pkg::RANK_PS;
  wire stores = member_store && (member_is_ps || 32'(member_select) < MEMBERS);
  wire [PLACE_BITS+MEMBER_BITS-1:0] member_at = {job_select, member_is_ps, member_is_ps ? '0 : member_select[MEMBER_BITS-2:0]};
  wire [111:0] member = {member_mac, member_ip, member_udp_port, member_port};

  // ---- Ingress.
  logic header_valid, header_pop, beat_valid, beat_last, beat_pop, ingress_empty;
  logic [511:0] header_data, beat_data;
  logic [15:0] header_bytes, header_port;
  logic in_frame, in_beat, in_error, in_keep, in_oversize;

  tally_ingress #(.MAX_FRAME(MAX_FRAME)) ingress (
      .clk, .rst, .s_axis_tdata, .s_axis_tkeep, .s_axis_tvalid, .s_axis_tlast, .s_axis_tuser, .s_axis_tready,
      .header_valid, .header_data, .header_bytes, .header_port, .header_pop, .beat_valid, .beat_data, .beat_last, .beat_pop,
      .empty(ingress_empty), .count_frame(in_frame), .count_beat(in_beat), .count_error(in_error), .count_keep(in_keep),
      .count_oversize(in_oversize)
  );

  // A header enters the parser if the queue behind admission has space for it.
  logic [$clog2(ADMITTED):0] places;
  logic slots_pop;

  assign header_pop = header_valid && places != 0 && !hold;
  always_ff @(posedge clk) begin
    places <= places + ($clog2(ADMITTED) + 1)'(slots_pop) - ($clog2(ADMITTED) + 1)'(header_pop);
    if (rst) places <= ($clog2(ADMITTED) + 1)'(ADMITTED);
  end

  // ---- Parser.
  logic p_valid, p_of_shard;
  logic [2:0] p_act, p_element;
  logic [5:0] p_reason;
  logic [15:0] p_bytes, p_port, p_udp_port, p_job, p_epoch;
  logic [47:0] p_mac;
  logic [31:0] p_ip, p_fragment;
  logic [7:0] p_flags, p_priority, p_rank, p_units;

  tally_parser parser (
      .clk, .rst, .enable, .own_mac, .own_ip, .base_port, .shards, .in_valid(header_pop), .in_data(header_data),
      .in_bytes(header_bytes), .in_port(header_port), .out_valid(p_valid), .out_act(p_act),
      .out_reason(p_reason), .out_bytes(p_bytes), .out_port(p_port), .out_mac(p_mac), .out_ip(p_ip), .out_udp_port(p_udp_port),
      .out_flags(p_flags), .out_priority(p_priority), .out_element(p_element), .out_job(p_job), .out_epoch(p_epoch),
      .out_fragment(p_fragment), .out_rank(p_rank), .out_units(p_units), .out_of_shard(p_of_shard)
  );

  // ---- Admission.
  localparam int ADMITTED_BITS = 3 + 16 + 16 + 8 + 8 + 3 + 32 + 8 + 8 + PLACE_BITS + SLOT_BITS;
  logic a_valid, a_drop;
  logic [2:0] a_act, a_element;
  logic [5:0] a_reason;
  logic [15:0] a_bytes, a_port;
  logic [7:0] a_flags, a_priority, a_rank, a_units;
  logic [31:0] a_fragment;
  logic [PLACE_BITS-1:0] a_place;
  logic [SLOT_BITS-1:0] a_slot;

  tally_admission #(.SLOTS(SLOTS), .JOBS(JOBS), .MEMBERS(MEMBERS)) admission (
      .clk, .rst, .live, .job_number(numbers), .job_epoch(epochs), .job_units(all_units), .job_workers(all_workers),
      .job_hash(hashes), .member_store(stores), .member_at, .member, .member_child, .in_valid(p_valid), .in_act(p_act), .in_reason(p_reason), .in_bytes(p_bytes),
      .in_port(p_port), .in_mac(p_mac), .in_ip(p_ip), .in_udp_port(p_udp_port), .in_flags(p_flags), .in_priority(p_priority),
      .in_element(p_element), .in_job(p_job), .in_epoch(p_epoch), .in_fragment(p_fragment), .in_rank(p_rank),
      .in_units(p_units), .in_of_shard(p_of_shard), .out_valid(a_valid), .out_act(a_act),
      .out_drop(a_drop), .out_reason(a_reason), .out_bytes(a_bytes), .out_port(a_port), .out_flags(a_flags),
      .out_priority(a_priority), .out_element(a_element), .out_fragment(a_fragment), .out_rank(a_rank), .out_units(a_units),
      .out_place(a_place), .out_slot(a_slot)
  );

  logic s_valid, admitted_overflow;
  logic [2:0] s_act, s_element;
  logic [15:0] s_bytes, s_port;
  logic [7:0] s_flags, s_priority, s_rank, s_units;
  logic [31:0] s_fragment;
  logic [PLACE_BITS-1:0] s_place;
  logic [SLOT_BITS-1:0] s_slot;
  logic [$clog2(ADMITTED):0] unused_admitted;

  tally_fifo #(.WIDTH(ADMITTED_BITS), .DEPTH(ADMITTED)) admitted (
      .clk, .rst, .push(a_valid), .valid(s_valid), .pop(slots_pop), .count(unused_admitted), .overflow(admitted_overflow),
      .tail({a_act, a_bytes, a_port, a_flags, a_priority, a_element, a_fragment, a_rank, a_units, a_place, a_slot}),
      .head({s_act, s_bytes, s_port, s_flags, s_priority, s_element, s_fragment, s_rank, s_units, s_place, s_slot})
  );

  // ---- Slots.
  logic slots_idle, op_room, op_valid, op_takes, op_keep;
  logic [7:0] op_beats, op_units;
  logic [2:0] op_from, op_element;
  logic [1:0] op_write;
  logic [SLOT_BITS-1:0] op_slot;
  logic [ROW_BITS-1:0] op_row;
  logic [HEAD_BITS-1:0] op_head;
  logic [tally_regs_pkg::COUNTERS-1:0] slot_counts;

  tally_slots #(.SLOTS(SLOTS), .JOBS(JOBS), .MEMBERS(MEMBERS), .RING(RING), .F32(F32)) slots (
      .clk, .rst, .job_units(all_units), .job_all(alls), .walk, .walk_all, .walk_place, .walked, .idle(slots_idle),
      .in_valid(s_valid), .in_pop(slots_pop), .in_act(s_act), .in_bytes(s_bytes), .in_port(s_port), .in_flags(s_flags),
      .in_priority(s_priority), .in_element(s_element), .in_fragment(s_fragment), .in_rank(s_rank), .in_units(s_units),
      .in_place(s_place), .in_slot(s_slot), .op_room, .op_valid, .op_takes, .op_beats, .op_from, .op_write, .op_keep, .op_slot,
      .op_row, .op_element, .op_units, .op_head, .counts(slot_counts)
  );

  // ---- Payload.
  logic out_room, out_beat, out_ends, out_raw, out_overflow, payload_idle, payload_fault;
  logic [511:0] out_data;
  logic [HEAD_BITS-1:0] out_head;

  tally_payload #(
      .SLOTS(SLOTS), .PAYLOAD_BYTES(PAYLOAD_BYTES), .JOBS(JOBS), .MEMBERS(MEMBERS), .RING(RING), .F32(F32)
  ) payload (
      .clk, .rst, .op_room, .op_valid, .op_takes, .op_beats, .op_from, .op_write, .op_keep, .op_slot, .op_row, .op_element,
      .op_units, .op_head, .beat_valid, .beat_data, .beat_last, .beat_pop, .out_room, .out_beat, .out_data, .out_ends, .out_head,
      .out_raw, .out_overflow, .idle(payload_idle), .fault(payload_fault)
  );

  // ---- Egress.
  logic egress_quiet, egress_empty, sent_frame, sent_beat, passed, partial, overflowed;

  tally_egress #(.PAYLOAD_BYTES(PAYLOAD_BYTES), .MAX_FRAME(MAX_FRAME), .JOBS(JOBS), .MEMBERS(MEMBERS)) egress (
      .clk, .rst, .own_mac, .own_ip, .base_port, .job_number(numbers), .job_epoch(epochs), .job_ports(ports),
      .member_store(stores), .member_at, .member, .in_room(out_room), .in_beat(out_beat), .in_data(out_data), .in_ends(out_ends),
      .in_head(out_head), .in_raw(out_raw), .in_overflow(out_overflow), .m_axis_tdata, .m_axis_tkeep, .m_axis_tvalid,
      .m_axis_tlast, .m_axis_tuser, .m_axis_tready, .quiet(egress_quiet), .empty(egress_empty), .count_frame(sent_frame),
      .count_beat(sent_beat), .count_passed(passed), .count_partial(partial), .count_overflow(overflowed)
  );

  // ---- Counters.
  logic [tally_regs_pkg::COUNTERS-1:0] events;

  always_comb begin
    events = slot_counts;
    for (int i = 0; i < tally_regs_pkg::COUNTERS; i++) if (a_drop && 32'(a_reason) == i) events[i] = 1'b1;
    events[tally_regs_pkg::COUNT_PARTIALS] = partial;
    events[tally_regs_pkg::COUNT_OVERFLOWS] = overflowed;
    events[tally_regs_pkg::DROP_STREAM_ERROR] = in_error;
    events[tally_regs_pkg::DROP_STREAM_OVERSIZE] = in_oversize;
    events[tally_regs_pkg::DROP_STREAM_KEEP] = in_keep;
    events[tally_regs_pkg::STREAM_FRAMES_IN] = in_frame;
    events[tally_regs_pkg::STREAM_BEATS_IN] = in_beat;
    events[tally_regs_pkg::STREAM_FRAMES_OUT] = sent_frame;
    events[tally_regs_pkg::STREAM_BEATS_OUT] = sent_beat;
    events[tally_regs_pkg::STREAM_PASSED] = passed;
    events[tally_regs_pkg::STREAM_STALLS] = s_axis_tvalid && !s_axis_tready;
  end

  tally_counters #(.COUNTERS(tally_regs_pkg::COUNTERS)) counting (
      .clk, .rst, .events, .snapshot(counter_snapshot), .latched(counters)
  );

  // ---- States.
  assign quiet = places == ($clog2(ADMITTED) + 1)'(ADMITTED) && slots_idle && payload_idle && egress_quiet;
  assign busy = clearing || !ingress_empty || !quiet || !egress_empty;

  always_ff @(posedge clk) begin
    if (payload_fault || admitted_overflow) fault <= 1'b1;
    if (rst) fault <= 1'b0;
  end

endmodule

`default_nettype wire
