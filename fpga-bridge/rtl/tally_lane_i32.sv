// SPDX-License-Identifier: Apache-2.0
//
// One lane of i32 sums: big-endian as in the frame, saturating. `saturated`: the sum did not fit
// (H-4).
//
// Accepts a pair each cycle. The sum of a pair is valid after the clock edge that takes the pair:
// the register is between the addition and the saturation.

`default_nettype none

module tally_lane_i32 (
    input  wire logic        clk,
    input  wire logic [31:0] a,
    input  wire logic [31:0] b,
    output logic      [31:0] sum,
    output logic             saturated
);

  wire [31:0] x = {a[7:0], a[15:8], a[23:16], a[31:24]};
  wire [31:0] y = {b[7:0], b[15:8], b[23:16], b[31:24]};
  wire [31:0] sum_0 = x + y;

  logic [31:0] wrapped;
  logic negative; // sign of both operands, if the sum did not fit

  always_ff @(posedge clk) begin
    wrapped <= sum_0;
    negative <= x[31];
    saturated <= x[31] == y[31] && sum_0[31] != x[31];
  end

  wire [31:0] s = saturated ? {negative, {31{!negative}}} : wrapped;

  assign sum = {s[7:0], s[15:8], s[23:16], s[31:24]};

endmodule

`default_nettype wire
