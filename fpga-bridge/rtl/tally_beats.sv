// SPDX-License-Identifier: Apache-2.0
//
// Queue of beats in block RAM, for whole frames. Beats become readable when their frame is kept. A
// frame that is given up leaves no trace.
//
// `keep` includes the beat that is written in the same cycle, and needs one. `forget` needs none.
// `used` counts the beats in the memory, those of an unfinished frame too; the writer must keep it
// at or below DEPTH. Readable beats appear on `head` two or three cycles after `keep`, then one a
// cycle.

`default_nettype none

module tally_beats #(
    parameter int WIDTH = 512,
    parameter int DEPTH = 512, // a power of two
    localparam int INDEX_BITS = $clog2(DEPTH)
) (
    input  wire logic                clk,
    input  wire logic                rst,
    input  wire logic                write,
    input  wire logic [WIDTH-1:0]    tail,
    input  wire logic                keep,
    input  wire logic                forget,
    output logic      [INDEX_BITS:0] used,
    output logic                     empty,
    output logic                     valid,
    output logic      [WIDTH-1:0]    head,
    input  wire logic                pop
);

  localparam int STAGED = 8;

  logic [INDEX_BITS:0] written; // next to write
  logic [INDEX_BITS:0] kept;    // first beat of the unfinished frame
  logic [INDEX_BITS:0] fetched; // next to read
  logic is_fetched;             // the memory's output is valid
  logic [WIDTH-1:0] fetched_beat;
  logic [$clog2(STAGED):0] staged;
  logic unused_overflow;

  // A beat is fetched only if the stage has space for it.
  wire fetch = fetched != kept && 32'(staged) + 32'(is_fetched) < STAGED;

  assign used = written - fetched;
  assign empty = used == 0 && !is_fetched && !valid;

  always_ff @(posedge clk) begin
    if (forget) written <= kept;
    else if (write) written <= written + 1'b1;
    if (keep) kept <= written + 1'b1;
    if (fetch) fetched <= fetched + 1'b1;
    is_fetched <= fetch;
    if (rst) begin
      written <= '0;
      kept <= '0;
      fetched <= '0;
      is_fetched <= 1'b0;
    end
  end

  tally_ram #(.WIDTH(WIDTH), .DEPTH(DEPTH)) memory (
      .clk, .read(fetch), .read_at(fetched[INDEX_BITS-1:0]), .read_data(fetched_beat),
      .write, .write_at(written[INDEX_BITS-1:0]), .write_data(tail)
  );

  tally_fifo #(.WIDTH(WIDTH), .DEPTH(STAGED)) stage (
      .clk, .rst, .push(is_fetched), .tail(fetched_beat), .valid, .head, .pop, .count(staged),
      .overflow(unused_overflow)
  );

`ifndef SYNTHESIS
  always_ff @(posedge clk) begin
    if (!rst) begin
      assert (used <= (INDEX_BITS + 1)'(DEPTH)) else $error("more beats than the memory has");
      assert (!keep || write) else $error("kept without a beat");
    end
  end
`endif

endmodule

`default_nettype wire
