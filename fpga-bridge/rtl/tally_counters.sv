// SPDX-License-Identifier: Apache-2.0
//
// Counters of 64 bits, each incremented at most once a cycle. `snapshot` latches all of them in one
// cycle.

`default_nettype none

module tally_counters #(
    parameter int COUNTERS = 48
) (
    input  wire logic                   clk,
    input  wire logic                   rst,
    input  wire logic [COUNTERS-1:0]    events,
    input  wire logic                   snapshot,
    output logic      [64*COUNTERS-1:0] latched
);

  logic [COUNTERS-1:0] counted;
  logic [64*COUNTERS-1:0] totals;

  always_ff @(posedge clk) begin
    counted <= events;
    for (int i = 0; i < COUNTERS; i++) if (counted[i]) totals[64*i+:64] <= totals[64*i+:64] + 64'd1;
    if (snapshot) latched <= totals;
    if (rst) begin
      counted <= '0;
      totals  <= '0;
      latched <= '0;
    end
  end

endmodule

`default_nettype wire
