// SPDX-License-Identifier: Apache-2.0
//
// Unsigned maximum of each of four bytes, for scales. Combinational.

`default_nettype none

module tally_lane_max (
    input  wire logic [31:0] a,
    input  wire logic [31:0] b,
    output logic      [31:0] max
);

  always_comb for (int i = 0; i < 4; i++) max[8*i+:8] = a[8*i+:8] > b[8*i+:8] ? a[8*i+:8] : b[8*i+:8];

endmodule

`default_nettype wire
