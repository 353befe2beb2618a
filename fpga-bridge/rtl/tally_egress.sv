// SPDX-License-Identifier: Apache-2.0
//
// Writes the headers of output frames, and transmits the frames.
//
// Payload beats wait in a queue for their frame's head. So OVERFLOW, which the last beat decides,
// can stand in the first. The headers are those of tally_wire::frame::emit: don't fragment, ECT(0),
// TTL 64, a valid IPv4 checksum, UDP checksum 0. Frames that pass through bring their own headers
// in the first beat.
//
// m_axis_tuser: if bit 31 is clear, bits 15..0 are the mask of the ports that the frame leaves by.
// If bit 31 is set, the frame passes through, and bits 15..0 are the port that it came in by.
//
// Latency: 6 cycles from the head to the first beat. A header each cycle, a beat each cycle.
//   1     reads the addresses of a member, and the job's registers
//   2     chooses addresses
//   3, 4  sum of the checksum, folded
//   5     the header is complete and waits for its turn

`default_nettype none

module tally_egress #(
    parameter int PAYLOAD_BYTES = 1024,
    parameter int MAX_FRAME = 1600,
    parameter int JOBS = 8,
    parameter int MEMBERS = 16,
    localparam int PLACE_BITS = JOBS > 1 ? $clog2(JOBS) : 1,
    localparam int MEMBER_BITS = $clog2(MEMBERS) + 1,
    localparam int HEAD_BITS = tally_pkg::HEAD_FIXED_BITS + MEMBERS + PLACE_BITS
) (
    input  wire logic               clk,
    input  wire logic               rst,
    input  wire logic [47:0]        own_mac,
    input  wire logic [31:0]        own_ip,
    input  wire logic [15:0]        base_port,
    input  wire logic [16*JOBS-1:0] job_number,
    input  wire logic [16*JOBS-1:0] job_epoch,
    input  wire logic [16*JOBS-1:0] job_ports,
    // The table of members.
    input  wire logic                              member_store,
    input  wire logic [PLACE_BITS+MEMBER_BITS-1:0] member_at,
    input  wire logic [111:0]                      member, // {MAC, IPv4, UDP port, switch port}
    // From the payload stage.
    output logic                      in_room,
    input  wire logic                 in_beat,
    input  wire logic [511:0]         in_data,
    input  wire logic                 in_ends,
    // Layout: tally_pkg.
    input  wire logic [HEAD_BITS-1:0] in_head,
    input  wire logic                 in_raw,
    input  wire logic                 in_overflow,
    // The stream.
    output logic      [511:0] m_axis_tdata,
    output logic      [63:0]  m_axis_tkeep,
    output logic              m_axis_tvalid,
    output logic              m_axis_tlast,
    output logic      [31:0]  m_axis_tuser,
    input  wire logic         m_axis_tready,
    output logic              quiet, // no head is before the tables of jobs and members
    output logic              empty,
    output logic              count_frame,
    output logic              count_beat,
    output logic              count_passed,
    output logic              count_partial,
    output logic              count_overflow
);

  localparam int MAX_BEATS = ((MAX_FRAME > 64 + PAYLOAD_BYTES ? MAX_FRAME : 64 + PAYLOAD_BYTES) + 63) / 64;
  localparam int DEPTH = 512;
  // Headers of an IPv4 packet, from IPv4 to Tally.
  localparam int IP_HEADERS_BYTES =
      tally_pkg::IPV4_HEADER_BYTES + tally_pkg::UDP_HEADER_BYTES + tally_pkg::TALLY_HEADER_BYTES;
  localparam int TALLY_BITS = 8 * tally_pkg::TALLY_HEADER_BYTES;
  // A frame that passes through has bytes and port in place of the fragment.
  localparam int RAW_PORT_AT = tally_pkg::FRAME_FRAGMENT_AT;
  localparam int RAW_BYTES_AT = tally_pkg::FRAME_FRAGMENT_AT + 16;
  localparam int HEADS = 64;
  // Beats and heads that may arrive after in_room falls, beyond a frame.
  localparam int IN_FLIGHT = 16;
  localparam int HEADERS = 8; // complete ones that wait

  localparam logic [15:0] ETHERTYPE = 16'h0800;
  localparam logic [7:0] VERSION_IHL = 8'h45;
  localparam logic [7:0] TOS = 8'h02; // ECT(0)
  localparam logic [15:0] FRAGMENTING = 16'h4000; // don't fragment
  localparam logic [7:0] TTL = 8'd64;
  localparam logic [7:0] PROTOCOL = 8'd17; // UDP

  // ---- Queues of beats and heads.
  logic [$clog2(DEPTH):0] used;
  logic [$clog2(HEADS):0] heads;
  logic beats_empty, beat_valid, beat_pop;
  logic [511:0] beat;
  logic head_valid, head_pop, raw, overflow, unused_heads_overflow;
  logic [HEAD_BITS-1:0] head;

  tally_beats #(.WIDTH(512), .DEPTH(DEPTH)) beat_queue (
      .clk, .rst, .write(in_beat), .tail(in_data), .keep(in_beat), .forget(1'b0), .used, .empty(beats_empty),
      .valid(beat_valid), .head(beat), .pop(beat_pop)
  );
  tally_fifo #(.WIDTH(HEAD_BITS + 2), .DEPTH(HEADS)) head_queue (
      .clk, .rst, .push(in_ends), .tail({in_raw, in_overflow, in_head}), .valid(head_valid), .head({raw, overflow, head}),
      .pop(head_pop), .count(heads), .overflow(unused_heads_overflow)
  );

  always_ff @(posedge clk) begin
    in_room <= 32'(used) <= DEPTH - 2 * MAX_BEATS - IN_FLIGHT && 32'(heads) <= HEADS - 2 * IN_FLIGHT;
    if (rst) in_room <= 1'b0;
  end

  wire [3:0] kind = head[tally_pkg::HEAD_KIND_AT+:tally_pkg::HEAD_KIND_BITS];
  wire [7:0] flags = head[tally_pkg::HEAD_FLAGS_AT+:tally_pkg::HEAD_FLAGS_BITS];
  wire [7:0] priority_ = head[tally_pkg::HEAD_PRIORITY_AT+:tally_pkg::HEAD_PRIORITY_BITS];
  wire [2:0] element = head[tally_pkg::HEAD_ELEMENT_AT+:tally_pkg::HEAD_ELEMENT_BITS];
  wire [PLACE_BITS-1:0] place = head[tally_pkg::HEAD_FIXED_BITS+MEMBERS+:PLACE_BITS];
  wire [31:0] fragment = head[tally_pkg::HEAD_FRAGMENT_AT+:tally_pkg::HEAD_FRAGMENT_BITS];
  wire [7:0] rank = head[tally_pkg::HEAD_RANK_AT+:tally_pkg::HEAD_RANK_BITS];
  wire [7:0] units = head[tally_pkg::HEAD_UNITS_AT+:tally_pkg::HEAD_UNITS_BITS];
  wire [MEMBERS-1:0] bitmap = head[tally_pkg::HEAD_BITMAP_AT+:MEMBERS];
  wire [1:0] to = head[tally_pkg::HEAD_TO_AT+:tally_pkg::HEAD_TO_BITS];
  wire [7:0] asker = head[tally_pkg::HEAD_ASKER_AT+:tally_pkg::HEAD_ASKER_BITS];
  wire unused_asker = &{1'b0, asker}; // its upper bits are not used

  // ---- A header is begun only if the queue of complete headers has space for it.
  logic valid1, valid2, valid3, valid4, header_pop, header_left;
  logic [$clog2(HEADERS):0] places;

  assign head_pop = head_valid && places != 0;
  always_ff @(posedge clk) begin
    header_left <= header_pop && !rst;
    places <= places + ($clog2(HEADERS) + 1)'(header_left) - ($clog2(HEADERS) + 1)'(head_pop);
    if (rst) places <= ($clog2(HEADERS) + 1)'(HEADERS);
  end

  assign quiet = !head_valid && !valid1 && !valid2;

  // ---- Stage 1.
  logic [111:0] member1;
  wire is_for_ps = to == tally_pkg::TO_PS;
  wire [MEMBER_BITS-2:0] member_row = is_for_ps ? '0 : asker[MEMBER_BITS-2:0];

  tally_ram #(.WIDTH(112), .DEPTH(1 << (PLACE_BITS + MEMBER_BITS))) members (
      .clk, .read(head_pop), .read_at({place, is_for_ps, member_row}), .read_data(member1),
      .write(member_store), .write_at(member_at), .write_data(member)
  );

  // Fields that pass through the stages: raw, and the Tally header.
  wire [7:0] flags_out = flags | (overflow ? tally_pkg::FLAG_OVERFLOW : 8'd0);
  logic [TALLY_BITS-1:0] tally;
  always_comb begin
    tally[tally_pkg::FRAME_VERSION_AT+:tally_pkg::FRAME_VERSION_BITS] = tally_pkg::VERSION;
    tally[tally_pkg::FRAME_KIND_AT+:tally_pkg::FRAME_KIND_BITS] = kind;
    tally[tally_pkg::FRAME_FLAGS_AT+:tally_pkg::FRAME_FLAGS_BITS] = flags_out;
    tally[tally_pkg::FRAME_PRIORITY_AT+:tally_pkg::FRAME_PRIORITY_BITS] = priority_;
    tally[tally_pkg::FRAME_ELEMENT_AT+:tally_pkg::FRAME_ELEMENT_BITS] = {5'd0, element};
    tally[tally_pkg::FRAME_JOB_AT+:tally_pkg::FRAME_JOB_BITS] = job_number[16*place+:16];
    tally[tally_pkg::FRAME_EPOCH_AT+:tally_pkg::FRAME_EPOCH_BITS] = job_epoch[16*place+:16];
    tally[tally_pkg::FRAME_FRAGMENT_AT+:tally_pkg::FRAME_FRAGMENT_BITS] = fragment;
    tally[tally_pkg::FRAME_RANK_AT+:tally_pkg::FRAME_RANK_BITS] = rank;
    tally[tally_pkg::FRAME_UNITS_AT+:tally_pkg::FRAME_UNITS_BITS] = units;
    tally[tally_pkg::FRAME_BITMAP_AT+:tally_pkg::FRAME_BITMAP_BITS] = 64'(bitmap);
  end

  logic raw1, raw2, raw3, raw4;
  logic [TALLY_BITS-1:0] tally1, tally2, tally3, tally4;
  logic [1:0] to1;
  logic [15:0] ports1;

  always_ff @(posedge clk) begin
    valid1 <= head_pop && !rst;
    raw1 <= raw;
    tally1 <= tally;
    to1 <= to;
    ports1 <= job_ports[16*place+:16];
    count_passed <= head_pop && raw && !rst;
    count_partial <= head_pop && !raw && kind == tally_pkg::KIND_PARTIAL && !rst;
    // Not for a frame to the PS, nor for a retransmitted result.
    count_overflow <= head_pop && !raw && to == tally_pkg::TO_GROUP && (flags_out & tally_pkg::FLAG_OVERFLOW) != 0 && !rst;
  end

  // ---- Stage 2. A group's address is 239.84.J.j. Its MAC is 01:00:5e and the lower 23 bits of the
  // address (A-2, RFC 1112).
  wire [15:0] number1 = tally1[tally_pkg::FRAME_JOB_AT+:tally_pkg::FRAME_JOB_BITS];
  wire [7:0] units1 = tally1[tally_pkg::FRAME_UNITS_AT+:tally_pkg::FRAME_UNITS_BITS];
  wire is_group1 = to1[1];
  logic [47:0] mac2;
  logic [31:0] ip2;
  logic [15:0] udp_port2, mask2, bytes2;

  always_ff @(posedge clk) begin
    valid2 <= valid1 && !rst;
    raw2 <= raw1;
    tally2 <= tally1;
    mac2 <= is_group1 ? {32'h01005e54, number1} : member1[111:64];
    ip2 <= is_group1 ? {16'hef54, number1} : member1[63:32];
    udp_port2 <= is_group1 ? base_port : member1[31:16];
    mask2 <= to1 == tally_pkg::TO_GROUP ? ports1 : member1[15:4] == 0 ? 16'd1 << member1[3:0] : 16'd0;
    bytes2 <= 16'({units1, 6'd0}) + 16'(IP_HEADERS_BYTES); // of the IPv4 packet
  end

  // ---- Stages 3 and 4: sum of the header's 16 bit words. `own_sum` is the sum of all words except
  // length and destination.
  logic [18:0] own_sum;
  always_ff @(posedge clk)
    own_sum <= 19'({VERSION_IHL, TOS}) + 19'(FRAGMENTING) + 19'({TTL, PROTOCOL}) + 19'(own_ip[31:16]) + 19'(own_ip[15:0]);

  logic [47:0] mac3, mac4;
  logic [31:0] ip3, ip4;
  logic [15:0] udp_port3, udp_port4, mask3, mask4, bytes3, bytes4, checksum4;
  logic [7:0] beats4;
  logic [19:0] sum3;
  wire [16:0] folded3 = 17'(sum3[15:0]) + 17'(sum3[19:16]);
  wire [7:0] units3 = tally3[tally_pkg::FRAME_UNITS_AT+:tally_pkg::FRAME_UNITS_BITS];
  wire [13:0] raw_bytes3 = tally3[RAW_BYTES_AT+:14];

  always_ff @(posedge clk) begin
    valid3 <= valid2 && !rst;
    raw3 <= raw2;
    tally3 <= tally2;
    mac3 <= mac2;
    ip3 <= ip2;
    udp_port3 <= udp_port2;
    mask3 <= mask2;
    bytes3 <= bytes2;
    sum3 <= 20'(own_sum) + 20'(bytes2) + 20'(ip2[31:16]) + 20'(ip2[15:0]);

    valid4 <= valid3 && !rst;
    raw4 <= raw3;
    tally4 <= tally3;
    mac4 <= mac3;
    ip4 <= ip3;
    udp_port4 <= udp_port3;
    mask4 <= mask3;
    bytes4 <= bytes3;
    checksum4 <= ~(folded3[15:0] + 16'(folded3[16]));
    beats4 <= raw3 ? raw_bytes3[13:6] + 8'(raw_bytes3[5:0] != 0) : units3;
  end

  // ---- The complete header. The highest byte of `b` is the frame's first byte.
  logic [511:0] b;
  always_comb begin
    b = 512'(tally4);
    b[tally_pkg::FRAME_DESTINATION_AT+:tally_pkg::FRAME_DESTINATION_BITS] = mac4;
    b[tally_pkg::FRAME_SOURCE_AT+:tally_pkg::FRAME_SOURCE_BITS] = own_mac;
    b[tally_pkg::FRAME_ETHERTYPE_AT+:tally_pkg::FRAME_ETHERTYPE_BITS] = ETHERTYPE;
    b[tally_pkg::FRAME_VERSION_IHL_AT+:tally_pkg::FRAME_VERSION_IHL_BITS] = VERSION_IHL;
    b[tally_pkg::FRAME_TOS_AT+:tally_pkg::FRAME_TOS_BITS] = TOS;
    b[tally_pkg::FRAME_IP_BYTES_AT+:tally_pkg::FRAME_IP_BYTES_BITS] = bytes4;
    b[tally_pkg::FRAME_FRAGMENTING_AT+:tally_pkg::FRAME_FRAGMENTING_BITS] = FRAGMENTING;
    b[tally_pkg::FRAME_TTL_AT+:tally_pkg::FRAME_TTL_BITS] = TTL;
    b[tally_pkg::FRAME_PROTOCOL_AT+:tally_pkg::FRAME_PROTOCOL_BITS] = PROTOCOL;
    b[tally_pkg::FRAME_IP_CHECKSUM_AT+:tally_pkg::FRAME_IP_CHECKSUM_BITS] = checksum4;
    b[tally_pkg::FRAME_FROM_IP_AT+:tally_pkg::FRAME_FROM_IP_BITS] = own_ip;
    b[tally_pkg::FRAME_TO_IP_AT+:tally_pkg::FRAME_TO_IP_BITS] = ip4;
    b[tally_pkg::FRAME_FROM_PORT_AT+:tally_pkg::FRAME_FROM_PORT_BITS] = base_port;
    b[tally_pkg::FRAME_TO_PORT_AT+:tally_pkg::FRAME_TO_PORT_BITS] = udp_port4;
    b[tally_pkg::FRAME_UDP_BYTES_AT+:tally_pkg::FRAME_UDP_BYTES_BITS] = bytes4 - 16'(tally_pkg::IPV4_HEADER_BYTES);
  end
  logic [511:0] header4, header;
  always_comb for (int i = 0; i < 64; i++) header4[8*i+:8] = b[511-8*i-:8];

  // Bytes in the frame's last beat, 0 for 64.
  wire [5:0] end4 = raw4 ? tally4[RAW_BYTES_AT+:6] : 6'd0;
  wire [15:0] user4 = raw4 ? tally4[RAW_PORT_AT+:16] : mask4;

  logic header_valid, header_raw, header_alone, header_single, unused_headers_overflow;
  logic [7:0] header_beats;
  logic [5:0] header_end;
  logic [15:0] header_user;
  logic [$clog2(HEADERS):0] unused_headers;

  tally_fifo #(.WIDTH(512 + 1 + 8 + 2 + 6 + 16), .DEPTH(HEADERS)) header_queue (
      .clk, .rst, .push(valid4), .tail({header4, raw4, beats4, beats4 == 8'd0, beats4 == 8'd1, end4, user4}), .valid(header_valid),
      .head({header, header_raw, header_beats, header_alone, header_single, header_end, header_user}), .pop(header_pop),
      .count(unused_headers), .overflow(unused_headers_overflow)
  );

  // ---- Transmission. `left` counts the beats that follow the header.
  logic is_sending; // the header is out
  logic [7:0] left;
  logic left_single; // left is 1
  wire may_send = !m_axis_tvalid || m_axis_tready;
  wire [7:0] left_now = is_sending ? left : header_beats;
  wire sends_header = header_valid && !is_sending && !header_raw;
  wire sends_beat = header_valid && (is_sending || header_raw) && beat_valid;
  wire is_last = sends_header ? header_alone : is_sending ? left_single : header_single;

  assign beat_pop = may_send && sends_beat;
  assign header_pop = may_send && (sends_header || sends_beat) && is_last;

  always_ff @(posedge clk) begin
    if (may_send) begin
      m_axis_tvalid <= sends_header || sends_beat;
      m_axis_tdata <= sends_header ? header : beat;
      m_axis_tlast <= is_last;
      m_axis_tkeep <= is_last && header_end != 0 ? ~(~64'd0 << header_end) : ~64'd0;
      m_axis_tuser <= {header_raw, 15'd0, header_user};
      if (sends_header || sends_beat) begin
        is_sending <= !is_last;
        left <= left_now - 8'(sends_beat);
        left_single <= left_now == (sends_beat ? 8'd2 : 8'd1);
      end
    end
    if (rst) begin
      m_axis_tvalid <= 1'b0;
      is_sending <= 1'b0;
    end
  end

  assign count_beat = m_axis_tvalid && m_axis_tready;
  assign count_frame = count_beat && m_axis_tlast;
  assign empty = quiet && !valid3 && !valid4 && !header_valid && !m_axis_tvalid && beats_empty && !in_ends && !in_beat;

`ifndef SYNTHESIS
  initial assert (DEPTH >= 2 * MAX_BEATS + IN_FLIGHT + 64) else $fatal(1, "DEPTH is too small for MAX_FRAME");
`endif

endmodule

`default_nettype wire
