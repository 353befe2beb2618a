// SPDX-License-Identifier: Apache-2.0
//
// Receives frames from the stream, whole or not at all.
//
// Store and forward: a frame is forwarded after its last beat, if it has no error; else it is
// dropped and counted once. The first of these that applies is counted: marked bad
// (`stream-error`), gaps in tkeep or an empty last beat (`stream-keep`), longer than MAX_FRAME
// (`stream-oversize`). First beat, length and port of a good frame go to the parser (`header_*`).
// All beats, the first included, go to the payload stage (`beat_*`). Both keep the order of
// arrival.
//
// Latency: the header is offered 3 cycles after the frame's last beat. A beat is accepted each
// cycle while the buffer has space. The buffer holds several frames of MAX_FRAME bytes, so a frame
// never waits for its own beats.

`default_nettype none

module tally_ingress #(
    parameter int MAX_FRAME = 1600,
    parameter int DEPTH = 512 // beats; a power of two
) (
    input  wire logic         clk,
    input  wire logic         rst,
    input  wire logic [511:0] s_axis_tdata,
    input  wire logic [63:0]  s_axis_tkeep,
    input  wire logic         s_axis_tvalid,
    input  wire logic         s_axis_tlast,
    input  wire logic [16:0]  s_axis_tuser, // {bad, with tlast; port, with the first beat}
    output logic              s_axis_tready,
    output logic              header_valid,
    output logic      [511:0] header_data,
    output logic      [15:0]  header_bytes, // of the frame
    output logic      [15:0]  header_port,
    input  wire logic         header_pop,
    output logic              beat_valid,
    output logic      [511:0] beat_data,
    output logic              beat_last,
    input  wire logic         beat_pop,
    output logic              empty, // no frame inside, not even a part of one
    output logic              count_frame,
    output logic              count_beat,
    output logic              count_error,
    output logic              count_keep,
    output logic              count_oversize
);

  localparam int MAX_BEATS = (MAX_FRAME + 63) / 64;
  localparam int HEADERS = 32;
  localparam int SLACK = 8; // beats that may arrive after tready falls
  localparam int COUNT_BITS = $clog2(MAX_BEATS + 2);

  // Stage 1: the beat.
  logic taken, taken_last;
  logic [511:0] taken_data;
  logic [63:0] taken_keep;
  logic [16:0] taken_user;

  always_ff @(posedge clk) begin
    taken <= s_axis_tvalid && s_axis_tready && !rst;
    taken_data <= s_axis_tdata;
    taken_keep <= s_axis_tkeep;
    taken_last <= s_axis_tlast;
    taken_user <= s_axis_tuser;
  end

  // Stage 2: tkeep. Ones from bit 0 up, without a gap, and their number.
  wire [63:0] last_byte = taken_keep & ~{1'b0, taken_keep[63:1]};
  logic [6:0] taken_bytes;

  always_comb begin
    taken_bytes = '0;
    for (int i = 0; i < 64; i++) taken_bytes |= last_byte[i] ? 7'(i + 1) : 7'd0;
  end

  logic looked, looked_last, looked_bad, looked_ragged;
  logic [511:0] looked_data;
  logic [15:0] looked_port;
  logic [6:0] looked_bytes;

  always_ff @(posedge clk) begin
    looked <= taken && !rst;
    looked_data <= taken_data;
    looked_last <= taken_last;
    looked_bad <= taken_user[16];
    looked_port <= taken_user[15:0];
    looked_bytes <= taken_bytes;
    looked_ragged <= !taken_keep[0] || (taken_keep[63:1] & ~taken_keep[62:0]) != 0
        || (!taken_last && !(&taken_keep));
  end

  // Stage 3: the frame.
  logic [COUNT_BITS-1:0] beats; // before this one in the frame; stops at MAX_BEATS
  logic was_ragged;
  logic [511:0] first_data;
  logic [15:0] first_port;

  wire is_first = beats == 0;
  wire is_beyond = 32'(beats) == MAX_BEATS;
  wire [15:0] frame_bytes = 16'({beats, 6'd0}) + 16'(looked_bytes);
  wire ends = looked && looked_last;
  wire ragged = looked_ragged || was_ragged;
  wire too_long = is_beyond || (32'(beats) == MAX_FRAME / 64 && 32'(looked_bytes) > MAX_FRAME % 64);
  wire good = ends && !looked_bad && !ragged && !too_long;
  wire [511:0] frame_header = is_first ? looked_data : first_data;
  wire [15:0] frame_port = is_first ? looked_port : first_port;

  assign count_beat = looked;
  assign count_frame = ends;
  assign count_error = ends && looked_bad;
  assign count_keep = ends && !looked_bad && ragged;
  assign count_oversize = ends && !looked_bad && !ragged && too_long;

  always_ff @(posedge clk) begin
    if (looked) begin
      if (is_first) begin
        first_data <= looked_data;
        first_port <= looked_port;
      end
      was_ragged <= !looked_last && ragged;
      if (looked_last) beats <= '0;
      else if (!is_beyond) beats <= beats + 1'b1;
    end
    if (rst) begin
      beats <= '0;
      was_ragged <= 1'b0;
    end
  end

  logic [$clog2(DEPTH):0] used;
  logic [$clog2(HEADERS):0] headers;
  logic beats_empty, unused_overflow;

  tally_beats #(.WIDTH(513), .DEPTH(DEPTH)) beat_queue (
      .clk, .rst, .write(looked && !is_beyond), .tail({looked_last, looked_data}), .keep(good), .forget(ends && !good),
      .used, .empty(beats_empty), .valid(beat_valid), .head({beat_last, beat_data}), .pop(beat_pop)
  );

  tally_fifo #(.WIDTH(544), .DEPTH(HEADERS)) header_queue (
      .clk, .rst, .push(good), .tail({frame_port, frame_bytes, frame_header}), .valid(header_valid),
      .head({header_port, header_bytes, header_data}), .pop(header_pop), .count(headers), .overflow(unused_overflow)
  );

  always_ff @(posedge clk) begin
    s_axis_tready <= 32'(used) < DEPTH - SLACK && 32'(headers) < HEADERS - SLACK;
    if (rst) s_axis_tready <= 1'b0;
  end

  assign empty = !taken && !looked && is_first && beats_empty && !header_valid;

`ifndef SYNTHESIS
  initial assert (DEPTH >= 2 * MAX_BEATS + SLACK) else $fatal(1, "DEPTH is too small for MAX_FRAME");
`endif

endmodule

`default_nettype wire
