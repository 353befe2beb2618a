// SPDX-License-Identifier: Apache-2.0
//
// Port tags: the switch's ports in MAC addresses. Frames keep their length, and all headers stay in
// the first beat.
//
//   in    Destination 02:54:43:00:PP:PP: the frame came in by port PP:PP. The core sees the card's
//         own MAC there, and the port in `tuser`. Any other destination, 02:54:43:00:ff:ff
//         included, is unchanged, with port 0xffff.
//   out   A frame made by the core (tuser bit 31 clear) gets source 02:54:43:01:MM:MM: the mask of
//         the ports that it leaves by. A frame that passes through (bit 31 set, bits 15..0 are the
//         port that it came in by) gets its tag back and is otherwise unchanged.
//
// One register each way, which moves a beat a cycle.

`default_nettype none

module tally_tags (
    input  wire logic         clk,
    input  wire logic         rst,
    input  wire logic [ 47:0] own_mac,  // the first byte on the wire in bits 47..40
    // From the switch.
    input  wire logic [511:0] s_net_tdata,
    input  wire logic [ 63:0] s_net_tkeep,
    input  wire logic         s_net_tvalid,
    input  wire logic         s_net_tlast,
    input  wire logic         s_net_tuser,  // with the last beat: the frame is bad
    output logic              s_net_tready,
    // To the core: {bad, port}; the port is valid with every beat.
    output logic      [511:0] m_core_tdata,
    output logic      [ 63:0] m_core_tkeep,
    output logic              m_core_tvalid,
    output logic              m_core_tlast,
    output logic      [ 16:0] m_core_tuser,
    input  wire logic         m_core_tready,
    // From the core: the mask is valid with the first beat.
    input  wire logic [511:0] s_core_tdata,
    input  wire logic [ 63:0] s_core_tkeep,
    input  wire logic         s_core_tvalid,
    input  wire logic         s_core_tlast,
    input  wire logic [ 31:0] s_core_tuser,
    output logic              s_core_tready,
    // To the switch.
    output logic      [511:0] m_net_tdata,
    output logic      [ 63:0] m_net_tkeep,
    output logic              m_net_tvalid,
    output logic              m_net_tlast,
    input  wire logic         m_net_tready
);
    // Lowest bits of the MAC addresses in a beat, whose first byte is the lowest.
    localparam int TO_MAC_AT = tally_pkg::BEAT_BITS - tally_pkg::FRAME_DESTINATION_AT - 48;
    localparam int FROM_MAC_AT = tally_pkg::BEAT_BITS - tally_pkg::FRAME_SOURCE_AT - 48;
    localparam logic [31:0] PORT_TAG = 32'h02544300;
    localparam logic [31:0] MASK_TAG = 32'h02544301;
    localparam logic [15:0] NO_PORT  = 16'hffff;

    // A MAC address in the byte order of `tdata`, where the first byte is the lowest.
    function automatic logic [47:0] swapped(input logic [47:0] mac);
        swapped = {mac[7:0], mac[15:8], mac[23:16], mac[31:24], mac[39:32], mac[47:40]};
    endfunction

    // ---- in
    logic in_first, in_bad;
    logic [15:0] in_port;
    wire [47:0] destination = swapped(s_net_tdata[TO_MAC_AT+:48]);
    wire [15:0] port = destination[47:16] == PORT_TAG ? destination[15:0] : NO_PORT;

    assign s_net_tready = !m_core_tvalid || m_core_tready;
    assign m_core_tuser  = {in_bad, in_port};

    always_ff @(posedge clk) begin
        if (m_core_tready) m_core_tvalid <= 1'b0;
        if (s_net_tvalid && s_net_tready) begin
            m_core_tvalid <= 1'b1;
            m_core_tdata  <= s_net_tdata;
            m_core_tkeep  <= s_net_tkeep;
            m_core_tlast  <= s_net_tlast;
            in_bad        <= s_net_tuser;
            in_first      <= s_net_tlast;
            if (in_first) begin
                in_port <= port;
                if (port != NO_PORT) m_core_tdata[TO_MAC_AT+:48] <= swapped(own_mac);
            end
        end
        if (rst) begin
            m_core_tvalid <= 1'b0;
            in_first      <= 1'b1;
        end
    end

    // ---- out
    logic out_first;
    wire passed = s_core_tuser[31];
    wire unused_mask = &{1'b0, s_core_tuser[30:16]};

    assign s_core_tready = !m_net_tvalid || m_net_tready;

    always_ff @(posedge clk) begin
        if (m_net_tready) m_net_tvalid <= 1'b0;
        if (s_core_tvalid && s_core_tready) begin
            m_net_tvalid <= 1'b1;
            m_net_tdata  <= s_core_tdata;
            m_net_tkeep  <= s_core_tkeep;
            m_net_tlast  <= s_core_tlast;
            out_first     <= s_core_tlast;
            if (out_first) begin
                if (!passed) m_net_tdata[FROM_MAC_AT+:48] <= swapped({MASK_TAG, s_core_tuser[15:0]});
                else if (s_core_tuser[15:0] != NO_PORT) m_net_tdata[TO_MAC_AT+:48] <= swapped({PORT_TAG, s_core_tuser[15:0]});
            end
        end
        if (rst) begin
            m_net_tvalid <= 1'b0;
            out_first     <= 1'b1;
        end
    end
endmodule

`default_nettype wire
