// SPDX-License-Identifier: Apache-2.0
//
// Payloads of slots and of the ring of results, and the lanes that sum.
//
// Executes the operations of tally_slots, one after the other, at a beat a cycle: beat 0 is the
// arrival's headers, beat k the k-th beat of the payload. Each cycle takes at most one beat from
// the ingress, reads one word of slots or ring, writes one word to each, and transmits one beat to
// the egress. An operation takes a cycle for each beat of the longest of its input, its write and
// its output. No cycle is lost between operations.
//
// Stages:
//   0                address and arrival
//   1, 2             memory, and its output register
//   3                operands
//   4                sum of integers
//   3 + F32_LATENCY  sum of f32
//
// Beats take the *short* path, which ends in stage 4, or the *long* path with the sums of f32. All
// beats of an operation take the same path. An operation without f32 takes the short path only if
// no beat on the long path would leave after it. So beats leave in order.
//
// A read of a slot's word that is still on its way to memory gets the new word, if that is known in
// stage 2, when the operands are taken. Otherwise the read waits in stage 0 until then. So
// operations on one slot follow each other without a lost cycle, at any size; those of f32 need 7
// beats or more for this. A read of a ring's word waits until the word is written.
//
// Each word has a 513th bit: an element in it has saturated. A frame's OVERFLOW is the OR over its
// beats.

`default_nettype none

module tally_payload #(
    parameter int SLOTS = 1024,
    parameter int PAYLOAD_BYTES = 1024,
    parameter int JOBS = 8,
    parameter int MEMBERS = 16,
    parameter int RING = 512,
    parameter int F32 = 1,
    localparam int PLACE_BITS = JOBS > 1 ? $clog2(JOBS) : 1,
    localparam int SLOT_BITS = $clog2(SLOTS),
    localparam int ROW_BITS = PLACE_BITS + $clog2(RING),
    localparam int HEAD_BITS = tally_pkg::HEAD_FIXED_BITS + MEMBERS + PLACE_BITS
) (
    input  wire logic                 clk,
    input  wire logic                 rst,
    // Operations.
    output logic                      op_room, // space for 8
    input  wire logic                 op_valid,
    input  wire logic                 op_takes,
    input  wire logic [7:0]           op_beats,
    input  wire logic [2:0]           op_from,
    input  wire logic [1:0]           op_write,
    input  wire logic                 op_keep,
    input  wire logic [SLOT_BITS-1:0] op_slot,
    input  wire logic [ROW_BITS-1:0]  op_row,
    input  wire logic [2:0]           op_element,
    input  wire logic [7:0]           op_units,
    input  wire logic [HEAD_BITS-1:0] op_head,
    // Beats of arrivals.
    input  wire logic                 beat_valid,
    input  wire logic [511:0]         beat_data,
    input  wire logic                 beat_last,
    output logic                      beat_pop,
    // To the egress: payload beats (all beats of a frame that passes through). The head comes with
    // or after the last beat.
    input  wire logic                 out_room, // space for a frame and the pipeline's beats
    output logic                      out_beat,
    output logic      [511:0]         out_data,
    output logic                      out_ends,
    output logic      [HEAD_BITS-1:0] out_head,
    output logic                      out_raw, // the frame passes through
    output logic                      out_overflow, // a beat of the frame has saturated
    output logic                      idle,
    output logic                      fault // a frame's end was at an unexpected beat
);

  localparam int UNITS = PAYLOAD_BYTES / 64;
  localparam int INDEX_BITS = UNITS > 1 ? $clog2(UNITS) : 1;
  localparam int WORD_BITS = SLOT_BITS + INDEX_BITS;
  localparam int KEPT_BITS = ROW_BITS + INDEX_BITS;
  localparam int SHORT = 4; // last stage of the short path
  localparam int LONG = F32 != 0 ? 3 + tally_pkg::F32_LATENCY : SHORT; // and of the long path
  localparam int TAKEN = 2; // last stage in which a word can be replaced
  localparam int ORDERS = 32;
  localparam int ORDER_BITS = 1 + 8 + 3 + 2 + 1 + SLOT_BITS + ROW_BITS + 3 + 8 + HEAD_BITS + 8 + 8;

  // ---- Queue of operations, with the index of their last beat and of their output's last beat.
  localparam int GIVEN_BITS = ORDER_BITS - 16;
  wire [7:0] op_head_units = op_head[tally_pkg::HEAD_UNITS_AT+:tally_pkg::HEAD_UNITS_BITS];
  wire [7:0] op_last_taken = op_takes ? op_beats - 8'd1 : 8'd0;
  logic given;
  logic [GIVEN_BITS-1:0] given_order;
  logic [7:0] last_taken, last_given, last_written;

  always_ff @(posedge clk) begin
    given <= op_valid && !rst;
    given_order <= {op_takes, op_last_taken, op_from, op_write, op_keep, op_slot, op_row, op_element, op_units, op_head};
    last_taken <= op_last_taken;
    last_given <= op_from == tally_pkg::FROM_NOTHING ? 8'd0 : op_from == tally_pkg::FROM_RAW ? op_last_taken : op_head_units;
    last_written <= op_write == tally_pkg::WRITE_NOTHING ? 8'd0 : op_units;
  end

  wire [7:0] last_seen = last_given > last_written ? last_given : last_written;
  wire [7:0] last_of_all = last_taken > last_seen ? last_taken : last_seen;

  logic next_valid, valid, unused_takes, keep, pop, unused_overflow;
  logic [7:0] units;
  logic [7:0] beats_end, last, last_out; // last beat that is taken, of the operation, of its output
  logic [2:0] from, element;
  logic [1:0] write;
  logic [SLOT_BITS-1:0] slot;
  logic [ROW_BITS-1:0] row;
  logic [HEAD_BITS-1:0] head;
  logic [$clog2(ORDERS):0] orders;
  logic [ORDER_BITS-1:0] next_order, order;

  tally_fifo #(.WIDTH(ORDER_BITS), .DEPTH(ORDERS)) order_queue (
      .clk, .rst, .push(given), .valid(next_valid), .pop(!valid || pop), .count(orders), .overflow(unused_overflow),
      .tail({given_order, last_of_all, last_given}), .head(next_order)
  );

  // The current operation is in registers. `is_taking` and `is_starting` are those of its next
  // beat.
  logic goes;
  logic [7:0] k; // the operation's next beat
  logic is_taking; // takes a beat of the arrival
  logic is_starting; // starts an output frame, which needs out_room
  assign {unused_takes, beats_end, from, write, keep, slot, row, element, units, head, last, last_out} = order;

  always_ff @(posedge clk) begin
    if (!valid || pop) begin
      valid <= next_valid;
      order <= next_order;
    end
    if (rst) valid <= 1'b0;
  end

  wire next_takes = next_order[ORDER_BITS-1];
  wire [2:0] next_from = next_order[ORDER_BITS-10-:3];

  always_ff @(posedge clk) begin
    if (!valid || pop) begin
      is_taking <= next_takes;
      is_starting <= next_from != tally_pkg::FROM_NOTHING;
    end else if (goes) begin
      is_taking <= is_taking && k != beats_end;
      is_starting <= 1'b0;
    end
  end

  assign op_room = 32'(orders) <= ORDERS - 10;

  // ---- Stage 0: the beat, and whether it can leave.
  logic [INDEX_BITS-1:0] index; // in the payload: k - 1
  logic was_long; // the path of this operation's earlier beats

  wire is_raw = from == tally_pkg::FROM_RAW;
  wire has_output = from != tally_pkg::FROM_NOTHING;
  wire is_sum = write == tally_pkg::WRITE_SUM || from == tally_pkg::FROM_SUM;
  wire is_out = has_output && k <= last_out && (is_raw || k != 0);
  wire is_out_end = has_output && k == last_out;
  wire is_written = write != tally_pkg::WRITE_NOTHING && k != 0 && k <= units;
  wire reads_slot = (is_sum && k != 0 && k <= units) || (from == tally_pkg::FROM_SLOT && is_out);
  wire reads_ring = from == tally_pkg::FROM_RING && is_out;
  wire [WORD_BITS-1:0] word = {slot, index};
  wire [KEPT_BITS-1:0] kept = {row, index};

  // The beats in the stages behind stage 0. Index 0 is not used.
  logic [LONG:1] s_valid, s_out, s_end, s_written, s_kept, s_long;
  logic [WORD_BITS-1:0] s_word[1:LONG];
  logic [KEPT_BITS-1:0] s_row[1:LONG];

  // Bit r: the word that this beat reads will be written in r cycles. Computed one cycle ahead,
  // when the operation's previous beat leaves; counts down while this beat waits. The first beat of
  // an operation reads nothing.
  logic [LONG-1:0] awaited, awaited_next;
  wire [INDEX_BITS-1:0] index_next = k == 0 ? '0 : index + 1'b1;
  wire is_from_ring = from == tally_pkg::FROM_RING;
  wire may_read_slot = is_sum || from == tally_pkg::FROM_SLOT;

  always_comb begin
    awaited_next = '0;
    for (int i = 1; i < LONG; i++) begin
      if (s_valid[i] && (is_from_ring ? s_kept[i] && s_row[i] == {row, index_next}
          : may_read_slot && s_written[i] && s_word[i] == {slot, index_next})) begin
        if (s_long[i]) awaited_next[LONG-1-i] = 1'b1;
        else if (i < SHORT) awaited_next[SHORT-1-i] = 1'b1;
      end
    end
  end

  always_ff @(posedge clk) begin
    awaited <= !goes ? awaited >> 1 : k == last ? '0 : awaited_next;
    if (rst) awaited <= '0;
  end

  wire is_blocked = |(awaited >> TAKEN + 1) || (is_from_ring && awaited != 0);

  logic is_followed; // a beat on the long path would leave later
  always_comb begin
    is_followed = 1'b0;
    for (int i = 1; i <= LONG - SHORT; i++) if (s_valid[i] && s_long[i]) is_followed = 1'b1;
  end

  wire is_long = F32 != 0 && (k != 0 ? was_long : is_followed || (is_sum && element == tally_pkg::ELEMENT_F32));
  assign goes = valid && (!is_taking || beat_valid) && !is_blocked && (!is_starting || out_room);

  assign pop = goes && k == last;
  assign beat_pop = goes && is_taking;

  always_ff @(posedge clk) begin
    if (goes) begin
      k <= k == last ? 8'd0 : k + 8'd1;
      index <= k == last || k == 0 ? '0 : index + 1'b1;
      was_long <= is_long;
    end
    fault <= beat_pop && beat_last != (k == beats_end);
    if (rst) begin
      k <= '0;
      index <= '0;
      fault <= 1'b0;
    end
  end

  // Heads of the frames in the stages.
  logic head_valid, head_raw, unused_heads_overflow;
  logic [HEAD_BITS-1:0] first_head;
  logic [4:0] unused_heads;
  logic w_end;

  tally_fifo #(.WIDTH(HEAD_BITS + 1), .DEPTH(16)) head_queue (
      .clk, .rst, .push(goes && k == 0 && has_output), .tail({is_raw, head}), .valid(head_valid), .head({head_raw, first_head}),
      .pop(w_end), .count(unused_heads), .overflow(unused_heads_overflow)
  );

  // ---- Stages 1 and 2: memory.
  logic [512:0] slot_word, ring_word, w_slot, w_out;
  logic w_written, w_kept;
  logic [WORD_BITS-1:0] w_word;
  logic [KEPT_BITS-1:0] w_row;

  tally_ram #(.WIDTH(513), .DEPTH(1 << WORD_BITS), .OUTPUT_REGISTER(1)) slots (
      .clk, .read(goes && reads_slot), .read_at(word), .read_data(slot_word),
      .write(w_written), .write_at(w_word), .write_data(w_slot)
  );
  tally_ram #(.WIDTH(513), .DEPTH(1 << KEPT_BITS), .OUTPUT_REGISTER(1)) ring (
      .clk, .read(goes && reads_ring), .read_at(kept), .read_data(ring_word),
      .write(w_kept), .write_at(w_row), .write_data(w_out)
  );

  // Forwarding of a word that is written in the cycle of its read or later: it passes in the stage
  // that `awaited` says. The last of several writes counts.
  logic [512:0] written1, written2;
  logic is_written1, is_written2;
  logic [TAKEN:1] comes1;
  logic comes2;
  logic [511:0] arrival1, arrival2;
  logic [2:0] from1, from2, element1, element2;
  logic [1:0] write1, write2;

  always_ff @(posedge clk) begin
    is_written1 <= awaited[0];
    written1 <= w_slot;
    comes1 <= awaited[TAKEN:1];
    is_written2 <= is_written1 || comes1[1];
    written2 <= comes1[1] ? w_slot : written1;
    comes2 <= comes1[2];

    arrival1 <= beat_data;
    from1 <= from;
    write1 <= write;
    element1 <= element;
    arrival2 <= arrival1;
    from2 <= from1;
    write2 <= write1;
    element2 <= element1;
  end

  // ---- Stage 3: operands, and the selection of results.
  logic [511:0] a, b;
  logic a_saturated, is_i32, is_f32, slot_is_sum, out_is_sum, out_is_a;

  always_ff @(posedge clk) begin
    {a_saturated, a} <= from2 == tally_pkg::FROM_RING ? ring_word : comes2 ? w_slot : is_written2 ? written2 : slot_word;
    b <= arrival2;
    is_i32 <= element2 == tally_pkg::ELEMENT_I32;
    is_f32 <= F32 != 0 && element2 == tally_pkg::ELEMENT_F32;
    slot_is_sum <= write2 == tally_pkg::WRITE_SUM;
    out_is_sum <= from2 == tally_pkg::FROM_SUM;
    out_is_a <= from2 == tally_pkg::FROM_SLOT || from2 == tally_pkg::FROM_RING;
  end

  // ---- Stage 4: sums of integers, and the words for the slot and for the egress.
  logic [511:0] sum_i32, max; // the sum is of the previous cycle's operands
  logic [15:0] saturated;

  for (genvar i = 0; i < 16; i++) begin : lanes
    tally_lane_i32 i32 (.clk, .a(a[32*i+:32]), .b(b[32*i+:32]), .sum(sum_i32[32*i+:32]), .saturated(saturated[i]));
    tally_lane_max scale (.a(a[32*i+:32]), .b(b[32*i+:32]), .max(max[32*i+:32]));
  end

  logic [511:0] slot_data4, out_data4; // for all but sums of integers
  logic a_saturated4, slot_is_sum4, out_is_sum4, out_is_a4, slot_is_i32_4, out_is_i32_4, is_i32_4, is_f32_4;

  always_ff @(posedge clk) begin
    slot_data4 <= slot_is_sum ? max : b;
    out_data4 <= out_is_a ? a : out_is_sum ? max : b;
    a_saturated4 <= a_saturated;
    slot_is_sum4 <= slot_is_sum;
    out_is_sum4 <= out_is_sum;
    out_is_a4 <= out_is_a;
    slot_is_i32_4 <= slot_is_sum && is_i32;
    out_is_i32_4 <= out_is_sum && is_i32;
    is_i32_4 <= is_i32;
    is_f32_4 <= is_f32;
  end

  wire sum_saturated4 = a_saturated4 || (is_i32_4 && saturated != 0);
  wire [512:0] slot4 = {slot_is_sum4 && sum_saturated4, slot_is_i32_4 ? sum_i32 : slot_data4};
  wire [512:0] out4 = {out_is_a4 ? a_saturated4 : out_is_sum4 && sum_saturated4, out_is_i32_4 ? sum_i32 : out_data4};

  // ---- The long path.
  logic [512:0] slot_long, out_long;

  if (F32 != 0) begin : with_f32
    localparam int MORE = LONG - SHORT;
    logic [511:0] sum_f32;
    logic [1027:0] delayed[0:MORE];
    logic [512:0] slot_end, out_end;
    logic slot_is_f32, out_is_f32;

    for (genvar i = 0; i < 16; i++) begin : lanes_f32
      tally_lane_f32 f32 (.clk, .a(a[32*i+:32]), .b(b[32*i+:32]), .sum(sum_f32[32*i+:32]));
    end

    assign delayed[0] = {is_f32_4 && slot_is_sum4, is_f32_4 && out_is_sum4, slot4, out4};
    for (genvar i = 1; i <= MORE; i++) begin : delay
      always_ff @(posedge clk) delayed[i] <= delayed[i-1];
    end
    assign {slot_is_f32, out_is_f32, slot_end, out_end} = delayed[MORE];
    assign slot_long = slot_is_f32 ? {1'b0, sum_f32} : slot_end;
    assign out_long = out_is_f32 ? {1'b0, sum_f32} : out_end;
  end else begin : without_f32
    wire unused_ways = is_f32_4;
    assign slot_long = slot4;
    assign out_long = out4;
  end

  // ---- The beats in the stages, and the end of both paths.
  always_ff @(posedge clk) begin
    s_valid[1] <= goes && (is_out || is_out_end || is_written);
    s_out[1] <= is_out;
    s_end[1] <= is_out_end;
    s_written[1] <= is_written;
    s_kept[1] <= keep && is_out;
    s_long[1] <= is_long;
    s_word[1] <= word;
    s_row[1] <= kept;
    for (int i = 2; i <= LONG; i++) begin
      s_valid[i] <= s_valid[i-1] && (i <= SHORT || s_long[i-1]);
      s_out[i] <= s_out[i-1];
      s_end[i] <= s_end[i-1];
      s_written[i] <= s_written[i-1];
      s_kept[i] <= s_kept[i-1];
      s_long[i] <= s_long[i-1];
      s_word[i] <= s_word[i-1];
      s_row[i] <= s_row[i-1];
    end
    if (rst) s_valid <= '0;
  end

  wire w_is_long = s_valid[LONG] && s_long[LONG];
  wire w_is_short = s_valid[SHORT] && !s_long[SHORT];
  wire w_valid = w_is_long || w_is_short;
  wire w_beat = w_valid && (w_is_long ? s_out[LONG] : s_out[SHORT]);

  assign w_end = w_valid && (w_is_long ? s_end[LONG] : s_end[SHORT]);
  assign w_written = w_valid && (w_is_long ? s_written[LONG] : s_written[SHORT]);
  assign w_kept = w_valid && (w_is_long ? s_kept[LONG] : s_kept[SHORT]);
  assign w_word = w_is_long ? s_word[LONG] : s_word[SHORT];
  assign w_row = w_is_long ? s_row[LONG] : s_row[SHORT];
  assign w_slot = w_is_long ? slot_long : slot4;
  assign w_out = w_is_long ? out_long : out4;

  // ---- To the egress, a cycle later.
  logic has_saturated; // an earlier beat of the frame
  wire saturates = has_saturated || (w_beat && w_out[512]);

  always_ff @(posedge clk) begin
    out_beat <= w_beat && !rst;
    out_data <= w_out[511:0];
    out_ends <= w_end && !rst;
    out_head <= first_head;
    out_raw <= head_raw;
    out_overflow <= saturates;
    if (w_valid) has_saturated <= saturates && !w_end;
    if (rst) has_saturated <= 1'b0;
  end

  assign idle = !given && !next_valid && !valid && s_valid == 0 && !out_ends && !out_beat;

`ifndef SYNTHESIS
  always_ff @(posedge clk) begin
    if (!rst) begin
      assert (!(w_is_long && w_is_short)) else $error("payload: beats of both paths end in one cycle");
      assert (!(s_valid[1] && !s_long[1] && s_written[1] && reads_slot && s_word[1] == word)) else $error("payload: a word is read in the cycle after its write");
      assert (!w_end || head_valid) else $error("payload: a frame ends without a head");
      assert (!fault) else $error("payload: a frame ends at an unexpected beat");
    end
  end
`endif

endmodule

`default_nettype wire
