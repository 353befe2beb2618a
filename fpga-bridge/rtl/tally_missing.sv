// SPDX-License-Identifier: Apache-2.0
//
// Rank that a PROBE asks for its contribution (S-7).
//
// A rank is missing if its contribution is neither in the slot nor noted as sent to the PS. The
// rank that sent the PROBE is chosen if it is missing itself, else the next missing rank above it;
// rank 0 follows the highest rank. If no rank is missing, the output has no meaning.
//
// Latency: the rank is valid 2 cycles after the input. One input each cycle.
//   1  the missing ranks, and those from the PROBE's rank up
//   2  the lowest of the latter, or of all if there is none

`default_nettype none

module tally_missing #(
    parameter int MEMBERS = 16
) (
    input  wire logic               clk,
    input  wire logic [MEMBERS-1:0] all, // ranks of the job
    input  wire logic [MEMBERS-1:0] slot, // ranks whose contribution is in the slot
    input  wire logic [MEMBERS-1:0] noted, // ranks whose contribution went to the PS
    input  wire logic [MEMBERS-1:0] below, // ranks below the PROBE's
    output logic      [7:0]         rank
);

  wire [MEMBERS-1:0] missing = all & ~(slot | noted);
  logic [MEMBERS-1:0] missing1, above1, first2;
  wire [MEMBERS-1:0] chosen1 = above1 != 0 ? above1 : missing1;

  always_ff @(posedge clk) begin
    missing1 <= missing;
    above1 <= missing & ~below;
    first2 <= chosen1 & ~(chosen1 - 1'b1);
  end

  always_comb begin
    rank = '0;
    for (int i = 0; i < MEMBERS; i++) rank |= first2[i] ? 8'(i) : 8'd0;
  end

endmodule

`default_nettype wire
