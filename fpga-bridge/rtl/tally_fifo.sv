// SPDX-License-Identifier: Apache-2.0
//
// Small queue in distributed memory. `head` is the oldest entry while `valid` is high.
//
// `count` is the number of entries. The writer must not push while `count` is DEPTH, unless the
// reader pops in the same cycle. `overflow` reports a push that broke this rule.

`default_nettype none

module tally_fifo #(
    parameter int WIDTH = 8,
    parameter int DEPTH = 16, // a power of two
    localparam int INDEX_BITS = $clog2(DEPTH)
) (
    input  wire logic                  clk,
    input  wire logic                  rst,
    input  wire logic                  push,
    input  wire logic [WIDTH-1:0]      tail,
    output logic                       valid,
    output logic      [WIDTH-1:0]      head,
    input  wire logic                  pop,
    output logic      [INDEX_BITS:0]   count,
    output logic                       overflow
);

  logic [WIDTH-1:0] entries[0:DEPTH-1];
  logic [INDEX_BITS-1:0] first;
  logic [INDEX_BITS-1:0] last;

  wire popped = pop && valid;

  assign head = entries[first];
  assign valid = count != 0;
  assign overflow = push && count == (INDEX_BITS + 1)'(DEPTH) && !popped;

  always_ff @(posedge clk) if (push) entries[last] <= tail;

  always_ff @(posedge clk) begin
    if (push) last <= last + 1'b1;
    if (popped) first <= first + 1'b1;
    count <= count + (INDEX_BITS + 1)'(push) - (INDEX_BITS + 1)'(popped);
    if (rst) begin
      first <= '0;
      last  <= '0;
      count <= '0;
    end
  end

`ifndef SYNTHESIS
  always_ff @(posedge clk) if (!rst) assert (!overflow) else $error("pushed into a full queue");
`endif

endmodule

`default_nettype wire
