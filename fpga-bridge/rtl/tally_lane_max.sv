// Four bytes of scales: the maximum of each, unsigned. Combinational.

module tally_lane_max (
    input  logic [31:0] a,
    input  logic [31:0] b,
    output logic [31:0] max
);

  always_comb for (int i = 0; i < 4; i++) max[8*i+:8] = a[8*i+:8] > b[8*i+:8] ? a[8*i+:8] : b[8*i+:8];

endmodule
