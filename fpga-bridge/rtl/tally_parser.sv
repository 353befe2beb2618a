// SPDX-License-Identifier: Apache-2.0
//
// Classifies a frame by its first 64 bytes and its length.
//
// The checks are those of crates/wire (UdpFrame::parse, Header::parse) and of the switch's
// classification, in the same order: card and software drop a frame for the same reason. A frame
// passes through if it is not for the own MAC, IPv4 address and UDP ports. So does a type that only
// the control thread answers.
//
// Latency: 3 cycles, one frame each cycle, never stalls.
//   1  registers the input
//   2  compares fields with constants and configuration, one bit for each check
//   3  the first check that fails decides

`default_nettype none

module tally_parser (
    input  wire logic         clk,
    input  wire logic         rst,
    input  wire logic         enable, // if low, all frames pass through
    input  wire logic [47:0]  own_mac,
    input  wire logic [31:0]  own_ip,
    input  wire logic [15:0]  base_port,
    input  wire logic [15:0]  shards, // a power of two
    input  wire logic         in_valid,
    input  wire logic [511:0] in_data,
    input  wire logic [15:0]  in_bytes,
    input  wire logic [15:0]  in_port,
    output logic              out_valid,
    output logic      [2:0]   out_act, // an ACT_ constant
    output logic      [5:0]   out_reason, // drop reason, of ACT_DISCARD
    output logic      [15:0]  out_bytes,
    output logic      [15:0]  out_port,
    output logic      [47:0]  out_mac, // source
    output logic      [31:0]  out_ip,
    output logic      [15:0]  out_udp_port,
    output logic      [7:0]   out_flags, // with MARKED if ECN says congestion (C-1)
    output logic      [7:0]   out_priority,
    output logic      [2:0]   out_element,
    output logic      [15:0]  out_job,
    output logic      [15:0]  out_epoch,
    output logic      [31:0]  out_fragment,
    output logic      [7:0]   out_rank,
    output logic      [7:0]   out_units,
    output logic              out_of_shard // the UDP port is that of the fragment's shard
);

  // Bytes of headers: of a frame up to IPv4 and UDP, of an IPv4 packet up to Tally and the payload.
  localparam int TO_IPV4 = tally_pkg::ETHERNET_HEADER_BYTES;
  localparam int TO_UDP = TO_IPV4 + tally_pkg::IPV4_HEADER_BYTES;
  localparam int IP_TO_TALLY = tally_pkg::IPV4_HEADER_BYTES + tally_pkg::UDP_HEADER_BYTES;
  localparam int IP_TO_PAYLOAD = IP_TO_TALLY + tally_pkg::TALLY_HEADER_BYTES;

  // Rule for bytes 14 to 21 of the Tally header.
  localparam logic [2:0] RULE_NONE = 3'd0;    // 0
  localparam logic [2:0] RULE_ONE = 3'd1;     // the rank's bit
  localparam logic [2:0] RULE_ORDERED = 3'd2; // ranks 0 to k, or one bit
  localparam logic [2:0] RULE_ANY = 3'd3;     // not 0
  localparam logic [2:0] RULE_TAG = 3'd4;     // any value: the switch has verified the tag (A-8)

  // Stage 1. The highest byte of `b` is the frame's first byte.
  logic valid1;
  /* verilator lint_off UNUSEDSIGNAL */ // Checksums and identification are not checked.
  logic [511:0] b;
  /* verilator lint_on UNUSEDSIGNAL */
  logic [15:0] bytes1, port1;

  always_ff @(posedge clk) begin
    valid1 <= in_valid && !rst;
    bytes1 <= in_bytes;
    port1  <= in_port;
    for (int i = 0; i < 64; i++) b[511-8*i-:8] <= in_data[8*i+:8];
  end

  wire [47:0] to_mac = b[tally_pkg::FRAME_DESTINATION_AT+:tally_pkg::FRAME_DESTINATION_BITS];
  wire [47:0] from_mac = b[tally_pkg::FRAME_SOURCE_AT+:tally_pkg::FRAME_SOURCE_BITS];
  wire [15:0] ethertype = b[tally_pkg::FRAME_ETHERTYPE_AT+:tally_pkg::FRAME_ETHERTYPE_BITS];
  wire [7:0]  ip_version = b[tally_pkg::FRAME_VERSION_IHL_AT+:tally_pkg::FRAME_VERSION_IHL_BITS];
  wire [1:0]  ip_ecn = b[tally_pkg::FRAME_TOS_AT+:2];
  wire [15:0] ip_bytes = b[tally_pkg::FRAME_IP_BYTES_AT+:tally_pkg::FRAME_IP_BYTES_BITS];
  // Without the reserved and the don't-fragment bit.
  wire [13:0] ip_fragment = b[tally_pkg::FRAME_FRAGMENTING_AT+:14];
  wire [7:0]  ip_protocol = b[tally_pkg::FRAME_PROTOCOL_AT+:tally_pkg::FRAME_PROTOCOL_BITS];
  wire [31:0] from_ip = b[tally_pkg::FRAME_FROM_IP_AT+:tally_pkg::FRAME_FROM_IP_BITS];
  wire [31:0] to_ip = b[tally_pkg::FRAME_TO_IP_AT+:tally_pkg::FRAME_TO_IP_BITS];
  wire [15:0] from_udp = b[tally_pkg::FRAME_FROM_PORT_AT+:tally_pkg::FRAME_FROM_PORT_BITS];
  wire [15:0] to_udp = b[tally_pkg::FRAME_TO_PORT_AT+:tally_pkg::FRAME_TO_PORT_BITS];
  wire [15:0] udp_bytes = b[tally_pkg::FRAME_UDP_BYTES_AT+:tally_pkg::FRAME_UDP_BYTES_BITS];
  wire [3:0]  version = b[tally_pkg::FRAME_VERSION_AT+:tally_pkg::FRAME_VERSION_BITS];
  wire [3:0]  kind = b[tally_pkg::FRAME_KIND_AT+:tally_pkg::FRAME_KIND_BITS];
  wire [7:0]  flags = b[tally_pkg::FRAME_FLAGS_AT+:tally_pkg::FRAME_FLAGS_BITS];
  wire [7:0]  priority_ = b[tally_pkg::FRAME_PRIORITY_AT+:tally_pkg::FRAME_PRIORITY_BITS];
  wire [7:0]  element = b[tally_pkg::FRAME_ELEMENT_AT+:tally_pkg::FRAME_ELEMENT_BITS];
  wire [15:0] job = b[tally_pkg::FRAME_JOB_AT+:tally_pkg::FRAME_JOB_BITS];
  wire [15:0] epoch = b[tally_pkg::FRAME_EPOCH_AT+:tally_pkg::FRAME_EPOCH_BITS];
  wire [31:0] fragment = b[tally_pkg::FRAME_FRAGMENT_AT+:tally_pkg::FRAME_FRAGMENT_BITS];
  wire [7:0]  rank = b[tally_pkg::FRAME_RANK_AT+:tally_pkg::FRAME_RANK_BITS];
  wire [7:0]  units = b[tally_pkg::FRAME_UNITS_AT+:tally_pkg::FRAME_UNITS_BITS];
  wire [63:0] bitmap = b[tally_pkg::FRAME_BITMAP_AT+:tally_pkg::FRAME_BITMAP_BITS];

  wire [15:0] shard = to_udp - base_port;
  wire has_elements = kind == tally_pkg::KIND_DATA || kind == tally_pkg::KIND_RESULT || kind == tally_pkg::KIND_PARTIAL;
  wire is_control = kind <= tally_pkg::KIND_LEAVE;
  wire is_worker = rank < 8'd64;
  wire is_ps = rank == tally_pkg::RANK_PS;
  wire is_switch = rank == tally_pkg::RANK_SWITCH;
  wire is_one_bit = bitmap == 64'd1 << rank[5:0];
  wire is_prefix = (bitmap[63:1] & ~bitmap[62:0]) == 0; // also if empty
  wire is_ordered = element[2:0] == tally_pkg::ELEMENT_F32 || element[2:0] >= tally_pkg::ELEMENT_F16;

  // At least two of four bits are set.
  function automatic logic are_several(input logic [3:0] bits);
    are_several = (bits[0] && bits[1]) || (bits[2] && bits[3]) || ((bits[0] || bits[1]) && (bits[2] || bits[3]));
  endfunction

  // At least two bits of the bitmap: two of four neighbours, two of four groups of four, or two of
  // four groups of sixteen.
  logic [15:0] some4, several1;
  logic [3:0] some16, several4;
  wire several16 = are_several(some16);

  always_comb begin
    for (int i = 0; i < 16; i++) begin
      some4[i] = bitmap[4*i+:4] != 0;
      several1[i] = are_several(bitmap[4*i+:4]);
    end
    for (int i = 0; i < 4; i++) begin
      some16[i] = some4[4*i+:4] != 0;
      several4[i] = are_several(some4[4*i+:4]);
    end
  end

  wire is_power = !(several16 || several4 != 0 || several1 != 0); // also if empty

  logic [7:0] allowed_flags;
  logic length_fits, rank_fits;
  logic [2:0] bitmap_rule; // a RULE_ constant

  always_comb begin
    case (kind)
      tally_pkg::KIND_DATA: allowed_flags = tally_pkg::FLAG_RESEND | tally_pkg::FLAGS_OF_SUM;
      tally_pkg::KIND_RESULT:
        allowed_flags = tally_pkg::FLAG_OVERFLOW | tally_pkg::FLAG_FROM_PS | tally_pkg::FLAG_MARKED | tally_pkg::FLAG_COLLISION;
      tally_pkg::KIND_PARTIAL:
        allowed_flags = tally_pkg::FLAG_RESEND | tally_pkg::FLAG_OVERFLOW | tally_pkg::FLAG_MARKED | tally_pkg::FLAG_COLLISION;
      tally_pkg::KIND_NOT_HERE: allowed_flags = tally_pkg::FLAG_FINISHED;
      default: allowed_flags = 8'd0;
    endcase
    length_fits = has_elements ? units >= 8'd1 && units <= 8'd128 : units == (is_control ? 8'd2 : 8'd0);
    case (kind)
      tally_pkg::KIND_DATA: begin
        rank_fits = is_worker;
        bitmap_rule = RULE_ONE;
      end
      tally_pkg::KIND_NACK, tally_pkg::KIND_PROBE: begin
        rank_fits = is_worker;
        bitmap_rule = RULE_TAG;
      end
      tally_pkg::KIND_RESULT: begin
        rank_fits = is_worker || is_ps || is_switch;
        bitmap_rule = RULE_TAG;
      end
      tally_pkg::KIND_PARTIAL: begin
        rank_fits = is_switch;
        bitmap_rule = is_ordered ? RULE_ORDERED : RULE_ANY;
      end
      tally_pkg::KIND_NOT_HERE: begin
        rank_fits = is_switch;
        bitmap_rule = RULE_TAG;
      end
      tally_pkg::KIND_REMIND: begin
        rank_fits = is_ps;
        bitmap_rule = RULE_TAG;
      end
      default: begin // control
        rank_fits = is_worker || is_ps;
        bitmap_rule = RULE_NONE;
      end
    endcase
  end

  // Stage 2. One bit for each check, in the order of stage 3.
  logic valid2, enabled2;
  logic bad_ethernet, is_own_source, is_not_own, is_not_ipv4, bad_ip_header, bad_ip_version, bad_ip_options, bad_ip_fragment,
      is_not_udp, bad_ip_length, bad_udp_length, is_other_ip, is_own_ip, is_other_port, bad_header, bad_version, bad_kind,
      bad_reserved, bad_element, bad_length, bad_rank, bad_payload, is_control2, is_for_others;
  logic is_empty2, is_one_bit2, is_prefix2, is_power2;
  logic [2:0] bitmap_rule2, act2;
  logic [15:0] bytes2, port2, udp_port2, job2, epoch2;
  logic [47:0] mac2;
  logic [31:0] ip2, fragment2;
  logic [7:0] flags2, priority2, rank2, units2;
  logic [2:0] element2;
  logic [15:0] shard2, last_shard2;

  always_ff @(posedge clk) begin
    valid2 <= valid1 && !rst;
    enabled2 <= enable;
    bad_ethernet <= bytes1 < 16'(TO_IPV4);
    is_own_source <= from_mac == own_mac;
    is_not_own <= to_mac != own_mac;
    is_not_ipv4 <= ethertype != 16'h0800;
    bad_ip_header <= bytes1 < 16'(TO_UDP);
    bad_ip_version <= ip_version[7:4] != 4'd4;
    bad_ip_options <= ip_version[3:0] != 4'd5;
    bad_ip_fragment <= ip_fragment != 0;
    is_not_udp <= ip_protocol != 8'd17;
    bad_ip_length <= ip_bytes < 16'(IP_TO_TALLY) || {1'b0, ip_bytes} + 17'(TO_IPV4) > {1'b0, bytes1};
    bad_udp_length <= {1'b0, udp_bytes} + 17'(tally_pkg::IPV4_HEADER_BYTES) != {1'b0, ip_bytes};
    is_other_ip <= to_ip != own_ip;
    is_own_ip <= from_ip == own_ip;
    is_other_port <= shard >= shards;
    bad_header <= ip_bytes < 16'(IP_TO_PAYLOAD);
    bad_version <= version != tally_pkg::VERSION;
    bad_kind <= kind == 4'd0 || kind > tally_pkg::KIND_PROBE;
    bad_reserved <= (flags & ~allowed_flags) != 0 || element[7:4] != 0;
    bad_element <= element[3] || has_elements == (element[2:0] == tally_pkg::ELEMENT_NONE);
    bad_length <= !length_fits;
    bad_rank <= !rank_fits;
    bitmap_rule2 <= bitmap_rule;
    is_empty2 <= bitmap == 0;
    is_one_bit2 <= is_one_bit;
    is_prefix2 <= is_prefix;
    is_power2 <= is_power;
    // A PARTIAL has its tag behind the payload (F-4). The card drops every PARTIAL; the length
    // decides the reason.
    bad_payload <= ip_bytes != 16'({units, 6'd0}) + 16'(IP_TO_PAYLOAD)
        + (kind == tally_pkg::KIND_PARTIAL ? 16'(tally_pkg::TAG_BYTES) : 16'd0);
    is_control2 <= is_control;
    // Not a RESULT of a switch: whether there is a parent to send it is for admission to say.
    is_for_others <= kind == tally_pkg::KIND_PARTIAL || kind == tally_pkg::KIND_NOT_HERE;
    case (kind)
      tally_pkg::KIND_DATA: act2 <= tally_pkg::ACT_DATA;
      tally_pkg::KIND_RESULT: act2 <= is_ps ? tally_pkg::ACT_PS_RESULT : tally_pkg::ACT_WORKER_RESULT;
      tally_pkg::KIND_REMIND: act2 <= tally_pkg::ACT_REMIND;
      tally_pkg::KIND_PROBE: act2 <= tally_pkg::ACT_PROBE;
      default: act2 <= tally_pkg::ACT_NACK;
    endcase
    shard2 <= shard;
    last_shard2 <= shards - 16'd1;
    bytes2 <= bytes1;
    port2 <= port1;
    mac2 <= from_mac;
    ip2 <= from_ip;
    udp_port2 <= from_udp;
    flags2 <= flags | (has_elements && ip_ecn == 2'd3 ? tally_pkg::FLAG_MARKED : 8'd0);
    priority2 <= priority_;
    element2 <= element[2:0];
    job2 <= job;
    epoch2 <= epoch;
    fragment2 <= fragment;
    rank2 <= rank;
    units2 <= units;
  end

  // Stage 3.
  logic passes, drops, bad_bitmap;
  logic [5:0] reason;

  always_comb begin
    case (bitmap_rule2)
      RULE_ONE: bad_bitmap = !is_one_bit2;
      RULE_ORDERED: bad_bitmap = is_empty2 || !(is_prefix2 || is_power2);
      RULE_ANY: bad_bitmap = is_empty2;
      RULE_TAG: bad_bitmap = 1'b0;
      default: bad_bitmap = !is_empty2;
    endcase
    passes = 1'b0;
    drops = 1'b0;
    reason = 6'd0;
    if (!enabled2) passes = 1'b1;
    else begin
      drops = 1'b1;
      if (bad_ethernet) reason = 6'(tally_regs_pkg::DROP_TRUNCATED);
      else if (is_own_source) reason = 6'(tally_regs_pkg::DROP_SPOOFED_SWITCH);
      else if (is_not_own || is_not_ipv4) passes = 1'b1;
      else if (bad_ip_header) reason = 6'(tally_regs_pkg::DROP_TRUNCATED);
      else if (bad_ip_version) reason = 6'(tally_regs_pkg::DROP_IP_VERSION);
      else if (bad_ip_options) reason = 6'(tally_regs_pkg::DROP_IP_OPTIONS);
      else if (bad_ip_fragment) reason = 6'(tally_regs_pkg::DROP_IP_FRAGMENT);
      else if (is_not_udp) passes = 1'b1;
      else if (bad_ip_length) reason = 6'(tally_regs_pkg::DROP_IP_LENGTH);
      else if (bad_udp_length) reason = 6'(tally_regs_pkg::DROP_UDP_LENGTH);
      else if (is_other_ip) passes = 1'b1;
      else if (is_own_ip) reason = 6'(tally_regs_pkg::DROP_SPOOFED_SWITCH);
      else if (is_other_port) passes = 1'b1;
      else if (bad_header) reason = 6'(tally_regs_pkg::DROP_HEADER_TRUNCATED);
      else if (bad_version) reason = 6'(tally_regs_pkg::DROP_VERSION);
      else if (bad_kind) reason = 6'(tally_regs_pkg::DROP_TYPE);
      else if (bad_reserved) reason = 6'(tally_regs_pkg::DROP_RESERVED_BITS);
      else if (bad_element) reason = 6'(tally_regs_pkg::DROP_ELEMENT_TYPE);
      else if (bad_length) reason = 6'(tally_regs_pkg::DROP_PAYLOAD_LENGTH);
      else if (bad_rank) reason = 6'(tally_regs_pkg::DROP_RANK_RANGE);
      else if (bad_bitmap) reason = 6'(tally_regs_pkg::DROP_BITMAP);
      else if (bad_payload) reason = 6'(tally_regs_pkg::DROP_PAYLOAD_LENGTH);
      else if (is_control2) passes = 1'b1;
      else if (is_for_others) reason = 6'(tally_regs_pkg::DROP_NOT_FOR_SWITCH);
      else drops = 1'b0;
      if (passes) drops = 1'b0;
    end
  end

  always_ff @(posedge clk) begin
    out_valid <= valid2 && !rst;
    out_act <= passes ? tally_pkg::ACT_PASS_THROUGH : drops ? tally_pkg::ACT_DISCARD : act2;
    out_reason <= reason;
    out_bytes <= bytes2;
    out_port <= port2;
    out_mac <= mac2;
    out_ip <= ip2;
    out_udp_port <= udp_port2;
    out_flags <= flags2;
    out_priority <= priority2;
    out_element <= element2;
    out_job <= job2;
    out_epoch <= epoch2;
    out_fragment <= fragment2;
    out_rank <= rank2;
    out_units <= units2;
    out_of_shard <= (16'(fragment2) & last_shard2) == shard2;
  end

endmodule

`default_nettype wire
