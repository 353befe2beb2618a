// SPDX-License-Identifier: Apache-2.0
//
// Checks the sender of a frame against job and members: the checks of Aggregator::admit, in its
// order (A-1, H-2).
//
// A frame of a job that is not loaded passes through. Any other frame leaves with its job's place
// and the slot of its fragment. Frames that the parser dropped are reported here, too, so that
// there is at most one drop a cycle.
//
// Latency: 4 cycles, one frame each cycle, never stalls.
//   1  looks the job's number up among the loaded jobs
//   2  reads the rank's member, and the job's registers
//   3  compares, one bit for each check
//   4  the first check that fails decides

`default_nettype none

module tally_admission #(
    parameter int SLOTS = 1024,
    parameter int JOBS = 8,
    parameter int MEMBERS = 16,
    localparam int PLACE_BITS = JOBS > 1 ? $clog2(JOBS) : 1,
    localparam int MEMBER_BITS = $clog2(MEMBERS) + 1, // the upper half is for the PS
    localparam int SLOT_BITS = $clog2(SLOTS)
) (
    input  wire logic                    clk,
    input  wire logic                    rst,
    // The table of jobs.
    input  wire logic [JOBS-1:0]         live,
    input  wire logic [16*JOBS-1:0]      job_number,
    input  wire logic [16*JOBS-1:0]      job_epoch,
    input  wire logic [8*JOBS-1:0]       job_units,
    input  wire logic [8*JOBS-1:0]       job_workers,
    input  wire logic [32*JOBS-1:0]      job_hash,
    // The table of members.
    input  wire logic                              member_store,
    input  wire logic [PLACE_BITS+MEMBER_BITS-1:0] member_at,
    input  wire logic [111:0]                      member, // {MAC, IPv4, UDP port, switch port}
    input  wire logic                              member_child, // it is a child switch
    // From the parser.
    input  wire logic        in_valid,
    input  wire logic [2:0]  in_act,
    input  wire logic [5:0]  in_reason, // of ACT_DISCARD
    input  wire logic [15:0] in_bytes,
    input  wire logic [15:0] in_port,
    input  wire logic [47:0] in_mac,
    input  wire logic [31:0] in_ip,
    input  wire logic [15:0] in_udp_port,
    input  wire logic [7:0]  in_flags,
    input  wire logic [7:0]  in_priority,
    input  wire logic [2:0]  in_element,
    input  wire logic [15:0] in_job,
    input  wire logic [15:0] in_epoch,
    input  wire logic [31:0] in_fragment,
    input  wire logic [7:0]  in_rank,
    input  wire logic [7:0]  in_units,
    input  wire logic        in_of_shard,
    // To the slots.
    output logic                       out_valid,
    output logic      [2:0]            out_act,
    output logic                       out_drop, // dropped for out_reason, here or by the parser
    output logic      [5:0]            out_reason,
    output logic      [15:0]           out_bytes,
    output logic      [15:0]           out_port,
    output logic      [7:0]            out_flags,
    output logic      [7:0]            out_priority,
    output logic      [2:0]            out_element,
    output logic      [31:0]           out_fragment,
    output logic      [7:0]            out_rank,
    output logic      [7:0]            out_units,
    output logic      [PLACE_BITS-1:0] out_place,
    output logic      [SLOT_BITS-1:0]  out_slot
);

  // Stage 1: at most one place has the job.
  logic [JOBS-1:0] found;
  logic [PLACE_BITS-1:0] found_place;

  always_comb begin
    found_place = '0;
    for (int i = 0; i < JOBS; i++) begin
      found[i] = live[i] && job_number[16*i+:16] == in_job;
      found_place |= found[i] ? PLACE_BITS'(i) : '0;
    end
  end

  // Fields that pass through the stages: reason, act, bytes, port, flags, priority, element,
  // fragment, rank, units.
  localparam int TRAVELS = 6 + 3 + 16 + 16 + 8 + 8 + 3 + 32 + 8 + 8;
  logic valid1, valid2, valid3;
  logic [TRAVELS-1:0] travels1, travels2, travels3;
  logic is_known1, shard1;
  logic [PLACE_BITS-1:0] place1;
  logic [15:0] epoch1;
  logic [111:0] from1;

  always_ff @(posedge clk) begin
    valid1 <= in_valid && !rst;
    travels1 <= {in_reason, in_act, in_bytes, in_port, in_flags, in_priority, in_element, in_fragment, in_rank, in_units};
    is_known1 <= |found;
    place1 <= found_place;
    shard1 <= in_of_shard;
    epoch1 <= in_epoch;
    from1 <= {in_mac, in_ip, in_udp_port, in_port};
  end

  // Stage 2.
  wire [2:0] act1 = travels1[TRAVELS-7-:3];
  wire [SLOT_BITS-1:0] fragment1 = travels1[16+:SLOT_BITS];
  wire [MEMBER_BITS-2:0] rank1 = travels1[8+:MEMBER_BITS-1];
  wire is_of_ps1 = act1 == tally_pkg::ACT_PS_RESULT || act1 == tally_pkg::ACT_REMIND || act1 == tally_pkg::ACT_NACK;
  wire [MEMBER_BITS-2:0] row1 = is_of_ps1 ? '0 : rank1;
  logic [111:0] bound2;
  logic is_child2;

  tally_ram #(.WIDTH(113), .DEPTH(1 << (PLACE_BITS + MEMBER_BITS))) members (
      .clk, .read(valid1), .read_at({place1, is_of_ps1, row1}), .read_data({is_child2, bound2}),
      .write(member_store), .write_at(member_at), .write_data({member_child, member})
  );

  logic is_known2, is_of_ps2, shard2;
  logic [PLACE_BITS-1:0] place2;
  logic [15:0] epoch2, job_epoch2;
  logic [7:0] job_units2, job_workers2;
  logic [111:0] from2;
  logic [SLOT_BITS-1:0] slot2;

  always_ff @(posedge clk) begin
    valid2 <= valid1 && !rst;
    travels2 <= travels1;
    is_known2 <= is_known1;
    is_of_ps2 <= is_of_ps1;
    place2 <= place1;
    shard2 <= shard1;
    epoch2 <= epoch1;
    from2 <= from1;
    job_epoch2 <= job_epoch[16*place1+:16];
    job_units2 <= job_units[8*place1+:8];
    job_workers2 <= job_workers[8*place1+:8];
    slot2 <= job_hash[32*place1+:SLOT_BITS] + fragment1;
  end

  // Stage 3.
  wire [2:0] act2 = travels2[TRAVELS-7-:3];
  wire [7:0] rank2 = travels2[15:8];
  wire [7:0] units2 = travels2[7:0];
  wire [7:0] flags2 = travels2[8+8+32+3+8+:8];
  wire is_result2 = act2 == tally_pkg::ACT_PS_RESULT || act2 == tally_pkg::ACT_WORKER_RESULT;
  wire rank_beyond2 = rank2 >= job_workers2;

  logic is_known3, is_of_switch3, bad_rank, bad_epoch, bad_shard, bad_units, bad_flags, bad_nack;
  logic [13:0] bad_member; // each byte of its addresses
  logic [PLACE_BITS-1:0] place3;
  logic [SLOT_BITS-1:0] slot3;

  always_ff @(posedge clk) begin
    valid3 <= valid2 && !rst;
    travels3 <= travels2;
    place3 <= place2;
    slot3 <= slot2;
    is_known3 <= is_known2;
    bad_rank <= !is_of_ps2 && rank_beyond2;
    is_of_switch3 <= rank2 == tally_pkg::RANK_SWITCH;
    for (int i = 0; i < 14; i++) bad_member[i] <= from2[8*i+:8] != bound2[8*i+:8];
    bad_epoch <= epoch2 != job_epoch2;
    bad_shard <= !shard2;
    bad_units <= (act2 == tally_pkg::ACT_DATA || is_result2) && units2 != job_units2;
    // OVERFLOW and COLLISION are of sums, which only a child switch sends as DATA (TR-7).
    bad_flags <= act2 == tally_pkg::ACT_DATA && !is_child2
        && (flags2 & (tally_pkg::FLAG_OVERFLOW | tally_pkg::FLAG_COLLISION)) != 0;
    bad_nack <= act2 == tally_pkg::ACT_NACK && rank_beyond2;
  end

  // Stage 4.
  wire [2:0] act3 = travels3[TRAVELS-7-:3];
  logic drops;
  logic [5:0] reason;
  logic [2:0] act;

  always_comb begin
    drops = act3 == tally_pkg::ACT_DISCARD;
    reason = travels3[TRAVELS-1-:6];
    act = act3;
    if (drops || act3 == tally_pkg::ACT_PASS_THROUGH) act = act3;
    else if (!is_known3) act = tally_pkg::ACT_PASS_THROUGH;
    else begin
      drops = 1'b1;
      // A RESULT of a switch: no job of the card has a parent.
      if (bad_rank) reason = is_of_switch3 ? 6'(tally_regs_pkg::DROP_NOT_FOR_SWITCH) : 6'(tally_regs_pkg::DROP_RANK_OUT_OF_JOB);
      else if (bad_member != 0) reason = 6'(tally_regs_pkg::DROP_NOT_A_MEMBER);
      else if (bad_epoch) reason = 6'(tally_regs_pkg::DROP_STALE_EPOCH);
      else if (bad_shard) reason = 6'(tally_regs_pkg::DROP_WRONG_SHARD);
      else if (bad_units) reason = 6'(tally_regs_pkg::DROP_UNITS_MISMATCH);
      else if (bad_flags) reason = 6'(tally_regs_pkg::DROP_RESERVED_BITS);
      else if (bad_nack) reason = 6'(tally_regs_pkg::DROP_RANK_OUT_OF_JOB);
      else drops = 1'b0;
      if (drops) act = tally_pkg::ACT_DISCARD;
    end
  end

  always_ff @(posedge clk) begin
    out_valid <= valid3 && !rst;
    out_drop <= valid3 && drops && !rst;
    out_reason <= reason;
    out_act <= act;
    {out_bytes, out_port, out_flags, out_priority, out_element, out_fragment, out_rank, out_units} <= travels3[TRAVELS-10:0];
    out_place <= place3;
    out_slot <= slot3;
  end

endmodule

`default_nettype wire
