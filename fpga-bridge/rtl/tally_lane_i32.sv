// One lane of i32 sums: big-endian as in the frame, saturating. `saturated` says that the sum did not fit (H-4).
//
// Combinational.

module tally_lane_i32 (
    input  logic [31:0] a,
    input  logic [31:0] b,
    output logic [31:0] sum,
    output logic        saturated
);

  wire [31:0] x = {a[7:0], a[15:8], a[23:16], a[31:24]};
  wire [31:0] y = {b[7:0], b[15:8], b[23:16], b[31:24]};
  wire [31:0] wrapped = x + y;
  wire [31:0] cut = {x[31], {31{!x[31]}}}; // the end on the side of both operands
  wire [31:0] s = saturated ? cut : wrapped;

  assign saturated = x[31] == y[31] && wrapped[31] != x[31];
  assign sum = {s[7:0], s[15:8], s[23:16], s[31:24]};

endmodule
