// SPDX-License-Identifier: Apache-2.0
//
// Heads of output frames: the fields of the headers that the tables of slots and ring decide. Their
// layout is in tally_pkg; tally_egress adds addresses, job number and epoch. Combinational.
//
// Only PARTIAL has a bitmap. Types with a tag in its place leave with 0, as the switch writes the
// tag (A-7). tally_missing overwrites rank and member of a HEAD_ASK.

`default_nettype none

module tally_heads #(
    parameter int JOBS = 8,
    parameter int MEMBERS = 16,
    localparam int PLACE_BITS = JOBS > 1 ? $clog2(JOBS) : 1,
    localparam int HEAD_BITS = tally_pkg::HEAD_FIXED_BITS + MEMBERS + PLACE_BITS
) (
    input  wire logic [3:0]            head, // a HEAD_ constant
    input  wire logic [7:0]            why, // flags of a frame to the PS
    input  wire logic                  is_raw,
    input  wire logic                  evicts_too, // the slot leaves, too, and `why` is for it
    // The frame.
    input  wire logic [15:0]           bytes,
    input  wire logic [15:0]           port,
    input  wire logic [7:0]            flags,
    input  wire logic [7:0]            priority_,
    input  wire logic [2:0]            element,
    input  wire logic [PLACE_BITS-1:0] place,
    input  wire logic [31:0]           fragment,
    input  wire logic [7:0]            rank,
    input  wire logic [7:0]            units,
    input  wire logic [7:0]            job_units, // units of the job's payloads
    input  wire logic [MEMBERS-1:0]    bit_,
    // The slot.
    input  wire logic [7:0]            s_priority,
    input  wire logic [2:0]            s_element,
    input  wire logic [PLACE_BITS-1:0] s_place,
    input  wire logic [31:0]           s_fragment,
    input  wire logic [7:0]            s_units,
    input  wire logic [MEMBERS-1:0]    s_bitmap,
    input  wire logic [7:0]            s_flags, // FLAGS_OF_SUM of its contributions
    // The ring.
    input  wire logic [7:0]            t_flags,
    input  wire logic [7:0]            t_priority,
    input  wire logic [2:0]            t_element,
    // The head of the first or only output frame, and some of its fields, for the ring.
    output logic      [HEAD_BITS-1:0]  out_head,
    output logic      [7:0]            out_flags,
    output logic      [7:0]            out_priority,
    output logic      [2:0]            out_element,
    // The head of the slot.
    output logic      [HEAD_BITS-1:0]  evict_head
);

  wire [7:0] evict_flags = why | s_flags;

  always_comb begin
    evict_head[tally_pkg::HEAD_KIND_AT+:tally_pkg::HEAD_KIND_BITS] = tally_pkg::KIND_PARTIAL;
    evict_head[tally_pkg::HEAD_FLAGS_AT+:tally_pkg::HEAD_FLAGS_BITS] = evict_flags;
    evict_head[tally_pkg::HEAD_PRIORITY_AT+:tally_pkg::HEAD_PRIORITY_BITS] = s_priority;
    evict_head[tally_pkg::HEAD_ELEMENT_AT+:tally_pkg::HEAD_ELEMENT_BITS] = s_element;
    evict_head[tally_pkg::HEAD_FIXED_BITS+MEMBERS+:PLACE_BITS] = s_place;
    evict_head[tally_pkg::HEAD_FRAGMENT_AT+:tally_pkg::HEAD_FRAGMENT_BITS] = s_fragment;
    evict_head[tally_pkg::HEAD_RANK_AT+:tally_pkg::HEAD_RANK_BITS] = tally_pkg::RANK_SWITCH;
    evict_head[tally_pkg::HEAD_UNITS_AT+:tally_pkg::HEAD_UNITS_BITS] = s_units;
    evict_head[tally_pkg::HEAD_BITMAP_AT+:MEMBERS] = s_bitmap;
    evict_head[tally_pkg::HEAD_TO_AT+:tally_pkg::HEAD_TO_BITS] = tally_pkg::TO_PS;
    evict_head[tally_pkg::HEAD_ASKER_AT+:tally_pkg::HEAD_ASKER_BITS] = rank;
  end

  logic [3:0] out_kind;
  logic [7:0] out_rank, out_units;
  logic [31:0] out_fragment;
  logic [MEMBERS-1:0] out_bitmap;
  logic [1:0] out_to;

  always_comb begin
    // Default: a PARTIAL of the arrival alone.
    out_kind = tally_pkg::KIND_PARTIAL;
    out_flags = flags | (evicts_too ? 8'd0 : why);
    out_priority = priority_;
    out_element = element;
    out_fragment = is_raw ? {bytes, port} : fragment;
    out_rank = tally_pkg::RANK_SWITCH;
    out_units = units;
    out_bitmap = bit_;
    out_to = tally_pkg::TO_PS;
    case (head)
      tally_pkg::HEAD_FOLLOW, tally_pkg::HEAD_RESULT: begin
        out_flags = s_flags | (flags & tally_pkg::FLAGS_OF_SUM);
        out_priority = s_priority;
        out_bitmap = s_bitmap | bit_;
        if (head == tally_pkg::HEAD_RESULT) begin
          out_kind = tally_pkg::KIND_RESULT;
          out_bitmap = '0;
          out_to = tally_pkg::TO_GROUP;
        end
      end
      tally_pkg::HEAD_AGAIN: begin
        out_kind = tally_pkg::KIND_RESULT;
        out_flags = t_flags;
        out_priority = t_priority;
        out_element = t_element;
        out_units = job_units;
        out_bitmap = '0;
        out_to = tally_pkg::TO_ASKER;
      end
      tally_pkg::HEAD_PS_RESULT, tally_pkg::HEAD_WORKER_RESULT: begin
        out_kind = tally_pkg::KIND_RESULT;
        out_flags = head == tally_pkg::HEAD_PS_RESULT ? flags | tally_pkg::FLAG_FROM_PS : flags & ~tally_pkg::FLAG_FROM_PS;
        out_bitmap = '0;
        out_to = tally_pkg::TO_GROUP;
      end
      tally_pkg::HEAD_NACK, tally_pkg::HEAD_ASK: begin
        out_kind = tally_pkg::KIND_NACK;
        out_rank = rank;
        out_bitmap = '0;
        out_to = tally_pkg::TO_WORKER;
      end
      tally_pkg::HEAD_PROBE: begin
        out_kind = tally_pkg::KIND_PROBE;
        out_rank = rank;
        out_bitmap = '0;
      end
      tally_pkg::HEAD_NOT_HERE: begin
        out_kind = tally_pkg::KIND_NOT_HERE;
        out_flags = why;
        out_bitmap = '0;
      end
      default: ;
    endcase
  end

  always_comb begin
    out_head[tally_pkg::HEAD_KIND_AT+:tally_pkg::HEAD_KIND_BITS] = out_kind;
    out_head[tally_pkg::HEAD_FLAGS_AT+:tally_pkg::HEAD_FLAGS_BITS] = out_flags;
    out_head[tally_pkg::HEAD_PRIORITY_AT+:tally_pkg::HEAD_PRIORITY_BITS] = out_priority;
    out_head[tally_pkg::HEAD_ELEMENT_AT+:tally_pkg::HEAD_ELEMENT_BITS] = out_element;
    out_head[tally_pkg::HEAD_FIXED_BITS+MEMBERS+:PLACE_BITS] = place;
    out_head[tally_pkg::HEAD_FRAGMENT_AT+:tally_pkg::HEAD_FRAGMENT_BITS] = out_fragment;
    out_head[tally_pkg::HEAD_RANK_AT+:tally_pkg::HEAD_RANK_BITS] = out_rank;
    out_head[tally_pkg::HEAD_UNITS_AT+:tally_pkg::HEAD_UNITS_BITS] = out_units;
    out_head[tally_pkg::HEAD_BITMAP_AT+:MEMBERS] = out_bitmap;
    out_head[tally_pkg::HEAD_TO_AT+:tally_pkg::HEAD_TO_BITS] = out_to;
    out_head[tally_pkg::HEAD_ASKER_AT+:tally_pkg::HEAD_ASKER_BITS] = rank;
    if (head == tally_pkg::HEAD_EVICT) out_head = evict_head;
  end

endmodule

`default_nettype wire
