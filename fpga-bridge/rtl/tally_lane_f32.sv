// SPDX-License-Identifier: Apache-2.0
//
// One lane of f32 sums: IEEE 754 binary32 addition, rounded to nearest with ties to even, with
// subnormals. Every NaN result is 0x7fc00000. Same bits as `sum_f32` of crates/kernels.
//
// Accepts a pair each cycle. `sum` is valid after LATENCY clock edges, the edge that takes the pair
// included: there are LATENCY registers in between. `tally_pkg::F32_LATENCY` is the same number.
//
//   1 order    the operand of larger magnitude first; the difference of the exponents
//   2 align    the smaller operand shifted right; the bits shifted out become a sticky bit
//   3 add      sum or difference of the magnitudes, never negative
//   4 count    leading zeros, limited where subnormals begin
//   5 scale    shift the leading one to the top
//   6 round    to nearest even; a carry runs into the exponent, and so to infinity
//
// Mantissas have 24 bits with the hidden one, then guard, round and sticky. That is enough to round
// a difference as if it were exact.

`default_nettype none

module tally_lane_f32 #(
    parameter int LATENCY = 6
) (
    input  wire logic        clk,
    input  wire logic [31:0] a,
    input  wire logic [31:0] b,
    output logic      [31:0] sum
);
`ifndef SYNTHESIS
    initial assert (LATENCY == 6) else $fatal(1, "tally_lane_f32 has 6 stages");
`endif

    // ---- 1: order
    // Zero and subnormals have the exponent of the smallest normal numbers, without the hidden one.
    wire [7:0] exponent_a = a[30:23] == 8'd0 ? 8'd1 : a[30:23];
    wire [7:0] exponent_b = b[30:23] == 8'd0 ? 8'd1 : b[30:23];
    wire       hidden_a   = a[30:23] != 8'd0;
    wire       hidden_b   = b[30:23] != 8'd0;
    wire       swap       = b[30:0] > a[30:0];
    wire [7:0] distance   = swap ? exponent_b - exponent_a : exponent_a - exponent_b;
    wire       top_a      = a[30:23] == 8'hff;
    wire       top_b      = b[30:23] == 8'hff;
    wire       nan        = (top_a && a[22:0] != 23'd0) || (top_b && b[22:0] != 23'd0) ||
                            (top_a && top_b && a[31] != b[31]);

    logic        sign_1, subtract_1, nan_1, infinite_1;
    logic [ 7:0] exponent_1;
    logic [23:0] large_1, small_1;
    logic [ 7:0] distance_1;
    always_ff @(posedge clk) begin
        sign_1     <= swap ? b[31] : a[31];
        subtract_1 <= a[31] != b[31];
        nan_1      <= nan;
        infinite_1 <= top_a || top_b;
        exponent_1 <= swap ? exponent_b : exponent_a;
        large_1    <= swap ? {hidden_b, b[22:0]} : {hidden_a, a[22:0]};
        small_1    <= swap ? {hidden_a, a[22:0]} : {hidden_b, b[22:0]};
        distance_1 <= distance;
    end

    // ---- 2: align
    logic [26:0] aligned;
    logic        sticky;
    always_comb begin
        aligned = {small_1, 3'd0};
        sticky  = 1'b0;
        for (int i = 0; i < 5; i++) begin
            if (distance_1[i]) begin
                sticky  = sticky | ((aligned & ((27'd1 << (1 << i)) - 27'd1)) != 27'd0);
                aligned = aligned >> (1 << i);
            end
        end
        aligned[0] = aligned[0] | sticky;
        // From 27 on only the sticky bit remains; the shifts above cover 27 to 31.
        if (distance_1[7:5] != 3'd0) aligned = {26'd0, small_1 != 24'd0};
    end

    logic        sign_2, subtract_2, nan_2, infinite_2;
    logic [ 7:0] exponent_2;
    logic [23:0] large_2;
    logic [26:0] small_2;
    always_ff @(posedge clk) begin
        sign_2     <= sign_1;
        subtract_2 <= subtract_1;
        nan_2      <= nan_1;
        infinite_2 <= infinite_1;
        exponent_2 <= exponent_1;
        large_2    <= large_1;
        small_2    <= aligned;
    end

    // ---- 3: add
    logic        sign_3, subtract_3, nan_3, infinite_3;
    logic [ 7:0] exponent_3;
    logic [27:0] total_3;
    // One bit at the leading one of a number with exponent field 1: the count of zeros ends there.
    logic [26:0] stop_3;
    always_ff @(posedge clk) begin
        sign_3     <= sign_2;
        subtract_3 <= subtract_2;
        nan_3      <= nan_2;
        infinite_3 <= infinite_2;
        exponent_3 <= exponent_2;
        total_3    <= subtract_2 ? {1'b0, large_2, 3'd0} - {1'b0, small_2} : {1'b0, large_2, 3'd0} + {1'b0, small_2};
        for (int i = 0; i < 27; i++) stop_3[i] <= exponent_2 == 8'(27 - i);
    end

    // ---- 4: count
    // Leading zeros, by groups of four bits: the group of the leading one, and its position in the
    // group.
    wire [27:0] search = {total_3[27], total_3[26:0] | stop_3};
    logic [6:0] any, first;
    logic [4:0] zeros;
    always_comb begin
        zeros = 5'd0;
        for (int g = 0; g < 7; g++) any[g] = search[27-4*g-:4] != 4'd0;
        for (int g = 0; g < 7; g++) begin
            first[g] = any[g] && (any & ((7'd1 << g) - 7'd1)) == 7'd0;
            if (first[g]) zeros |= {3'(g), search[27-4*g-:2] == 2'd0, !search[27-4*g] && (search[26-4*g] || !search[25-4*g])};
        end
    end

    logic        sign_4, nan_4, infinite_4;
    logic [ 7:0] exponent_4;  // without leading zeros
    logic [ 4:0] zeros_4;
    logic [27:0] total_4;
    always_ff @(posedge clk) begin
        // Operands that cancel give +0. Only -0 + -0 gives -0.
        sign_4     <= sign_3 && !(subtract_3 && total_3 == 28'd0);
        nan_4      <= nan_3;
        infinite_4 <= infinite_3 || (total_3[27] && exponent_3 == 8'd254);
        exponent_4 <= exponent_3 + 8'd1;
        zeros_4    <= zeros;
        total_4    <= total_3;
    end

    // ---- 5: scale
    wire [27:0] scaled = total_4 << zeros_4;

    logic        sign_5, nan_5, infinite_5;
    logic [ 7:0] exponent_5;
    logic [26:0] scaled_5;
    always_ff @(posedge clk) begin
        sign_5     <= sign_4;
        nan_5      <= nan_4;
        infinite_5 <= infinite_4;
        exponent_5 <= exponent_4 - {3'd0, zeros_4};
        scaled_5   <= {scaled[27:2], scaled[1] | scaled[0]};
    end

    // ---- 6: round
    wire up = scaled_5[2] && (scaled_5[1] || scaled_5[0] || scaled_5[3]);
    always_ff @(posedge clk) begin
        if (nan_5) sum <= 32'h7fc00000;
        else if (infinite_5) sum <= {sign_5, 31'h7f800000};
        else sum <= {sign_5, {(scaled_5[26] ? exponent_5 : 8'd0), scaled_5[25:3]} + {30'd0, up}};
    end
endmodule

`default_nettype wire
