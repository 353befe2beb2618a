// SPDX-License-Identifier: Apache-2.0
//
// Width converter for AXI-Stream: IN_BITS to OUT_BITS, wider, narrower or equal.
//
// No bubbles: the narrow side moves one beat a cycle. The wide side moves one beat in OUT_BITS /
// IN_BITS (or IN_BITS / OUT_BITS) cycles, fewer at a frame's end. Bytes keep their position, and so
// do gaps in `tkeep`: a narrow beat with missing bytes leaves a gap in the wide beat, which the
// ingress detects. `tuser` is that of a frame's last beat.

`default_nettype none

module tally_width #(
    parameter int IN_BITS  = 64,
    parameter int OUT_BITS = 512
) (
    input  wire logic                    clk,
    input  wire logic                    rst,
    input  wire logic [IN_BITS-1:0]      s_axis_tdata,
    input  wire logic [IN_BITS/8-1:0]    s_axis_tkeep,
    input  wire logic                    s_axis_tvalid,
    input  wire logic                    s_axis_tlast,
    input  wire logic                    s_axis_tuser,
    output logic                         s_axis_tready,
    output logic      [OUT_BITS-1:0]     m_axis_tdata,
    output logic      [OUT_BITS/8-1:0]   m_axis_tkeep,
    output logic                         m_axis_tvalid,
    output logic                         m_axis_tlast,
    output logic                         m_axis_tuser,
    input  wire logic                    m_axis_tready
);
    localparam int IN_BYTES  = IN_BITS / 8;
    localparam int OUT_BYTES = OUT_BITS / 8;

`ifndef SYNTHESIS
    initial begin
        assert (IN_BITS % 8 == 0 && OUT_BITS % 8 == 0) else $fatal(1, "tally_width is of whole bytes");
        assert (OUT_BITS == IN_BITS << $clog2(OUT_BITS / IN_BITS) || IN_BITS == OUT_BITS << $clog2(IN_BITS / OUT_BITS))
            else $fatal(1, "one width of tally_width must be the other times a power of two");
    end
`endif

    generate
        if (IN_BITS == OUT_BITS) begin : g_same
            wire unused_clock = &{1'b0, clk, rst};
            assign m_axis_tdata  = s_axis_tdata;
            assign m_axis_tkeep  = s_axis_tkeep;
            assign m_axis_tvalid = s_axis_tvalid;
            assign m_axis_tlast  = s_axis_tlast;
            assign m_axis_tuser  = s_axis_tuser;
            assign s_axis_tready = m_axis_tready;
        end else if (IN_BITS < OUT_BITS) begin : g_wider
            // One wide beat, filled from bit 0. The first part of the next beat enters while it
            // leaves.
            localparam int RATIO = OUT_BITS / IN_BITS;
            localparam int PLACE_BITS = $clog2(RATIO);
            logic [PLACE_BITS-1:0] place;
            wire take = s_axis_tvalid && s_axis_tready;
            wire completes = s_axis_tlast || (&place);

            assign s_axis_tready = !m_axis_tvalid || m_axis_tready;

            always_ff @(posedge clk) begin
                if (m_axis_tready) m_axis_tvalid <= 1'b0;
                if (take) begin
                    for (int i = 0; i < RATIO; i++) begin
                        if (place == i[PLACE_BITS-1:0]) begin
                            m_axis_tdata[i*IN_BITS+:IN_BITS] <= s_axis_tdata;
                            m_axis_tkeep[i*IN_BYTES+:IN_BYTES] <= s_axis_tkeep;
                        end else if (place == 0) begin
                            m_axis_tkeep[i*IN_BYTES+:IN_BYTES] <= {IN_BYTES{1'b0}};
                        end
                    end
                    m_axis_tlast <= s_axis_tlast;
                    m_axis_tuser <= s_axis_tuser;
                    m_axis_tvalid <= completes;
                    place <= completes ? '0 : place + 1'b1;
                end
                if (rst) begin
                    m_axis_tvalid <= 1'b0;
                    place <= '0;
                end
            end
        end else begin : g_narrower
            // One wide beat, shifted out from bit 0 until no byte is left.
            logic [IN_BITS-1:0] data;
            logic [IN_BYTES-1:0] keep;
            logic last, user;
            wire ends = keep[IN_BYTES-1:OUT_BYTES] == 0;

            assign m_axis_tdata  = data[OUT_BITS-1:0];
            assign m_axis_tkeep  = keep[OUT_BYTES-1:0];
            assign m_axis_tlast  = last && ends;
            assign m_axis_tuser  = user;
            assign s_axis_tready = !m_axis_tvalid || (m_axis_tready && ends);

            always_ff @(posedge clk) begin
                if (s_axis_tvalid && s_axis_tready) begin
                    m_axis_tvalid <= 1'b1;
                    data <= s_axis_tdata;
                    keep <= s_axis_tkeep;
                    last <= s_axis_tlast;
                    user <= s_axis_tuser;
                end else if (m_axis_tready) begin
                    data <= data >> OUT_BITS;
                    keep <= keep >> OUT_BYTES;
                    if (ends) m_axis_tvalid <= 1'b0;
                end
                if (rst) m_axis_tvalid <= 1'b0;
            end
        end
    endgenerate
endmodule

`default_nettype wire
