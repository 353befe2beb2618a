// SPDX-License-Identifier: Apache-2.0
//
// Constants and layouts that several modules of the card share.
//
// Numbers of the protocol are those of docs/PROTOCOL.md, section 2. Numbers of counters are in
// tally_regs_pkg, which is generated together with the registers. The benches read both packages
// (tb/frames.py), so a layout is written here and nowhere else.

`default_nettype none

/* verilator lint_off UNUSEDPARAM */ // No module uses all of them.
package tally_pkg;

  // Bytes of a beat. Also the unit of payloads, and the size of all headers together.
  localparam int BEAT_BYTES = 64;
  localparam int BEAT_BITS = 8 * BEAT_BYTES;

  // Layout of a frame's headers, from Ethernet to Tally: FRAME_x_BITS is the width of a field,
  // FRAME_x_AT its lowest bit in a beat whose highest byte is the frame's first byte. The streams
  // have the opposite byte order: the first byte is the lowest.
  localparam int FRAME_BITMAP_BITS         = 64; // the rank bitmap, or the authentication tag
  localparam int FRAME_BITMAP_AT           = 0;
  localparam int FRAME_UNITS_BITS          = 8;
  localparam int FRAME_UNITS_AT            = FRAME_BITMAP_AT + FRAME_BITMAP_BITS;
  localparam int FRAME_RANK_BITS           = 8;
  localparam int FRAME_RANK_AT             = FRAME_UNITS_AT + FRAME_UNITS_BITS;
  localparam int FRAME_FRAGMENT_BITS       = 32;
  localparam int FRAME_FRAGMENT_AT         = FRAME_RANK_AT + FRAME_RANK_BITS;
  localparam int FRAME_EPOCH_BITS          = 16;
  localparam int FRAME_EPOCH_AT            = FRAME_FRAGMENT_AT + FRAME_FRAGMENT_BITS;
  localparam int FRAME_JOB_BITS            = 16;
  localparam int FRAME_JOB_AT              = FRAME_EPOCH_AT + FRAME_EPOCH_BITS;
  localparam int FRAME_ELEMENT_BITS        = 8;
  localparam int FRAME_ELEMENT_AT          = FRAME_JOB_AT + FRAME_JOB_BITS;
  localparam int FRAME_PRIORITY_BITS       = 8;
  localparam int FRAME_PRIORITY_AT         = FRAME_ELEMENT_AT + FRAME_ELEMENT_BITS;
  localparam int FRAME_FLAGS_BITS          = 8;
  localparam int FRAME_FLAGS_AT            = FRAME_PRIORITY_AT + FRAME_PRIORITY_BITS;
  localparam int FRAME_KIND_BITS           = 4;
  localparam int FRAME_KIND_AT             = FRAME_FLAGS_AT + FRAME_FLAGS_BITS;
  localparam int FRAME_VERSION_BITS        = 4;
  localparam int FRAME_VERSION_AT          = FRAME_KIND_AT + FRAME_KIND_BITS;
  localparam int FRAME_UDP_CHECKSUM_BITS   = 16;
  localparam int FRAME_UDP_CHECKSUM_AT     = FRAME_VERSION_AT + FRAME_VERSION_BITS;
  localparam int FRAME_UDP_BYTES_BITS      = 16; // UDP header and payload
  localparam int FRAME_UDP_BYTES_AT        = FRAME_UDP_CHECKSUM_AT + FRAME_UDP_CHECKSUM_BITS;
  localparam int FRAME_TO_PORT_BITS        = 16;
  localparam int FRAME_TO_PORT_AT          = FRAME_UDP_BYTES_AT + FRAME_UDP_BYTES_BITS;
  localparam int FRAME_FROM_PORT_BITS      = 16;
  localparam int FRAME_FROM_PORT_AT        = FRAME_TO_PORT_AT + FRAME_TO_PORT_BITS;
  localparam int FRAME_TO_IP_BITS          = 32;
  localparam int FRAME_TO_IP_AT            = FRAME_FROM_PORT_AT + FRAME_FROM_PORT_BITS;
  localparam int FRAME_FROM_IP_BITS        = 32;
  localparam int FRAME_FROM_IP_AT          = FRAME_TO_IP_AT + FRAME_TO_IP_BITS;
  localparam int FRAME_IP_CHECKSUM_BITS    = 16;
  localparam int FRAME_IP_CHECKSUM_AT      = FRAME_FROM_IP_AT + FRAME_FROM_IP_BITS;
  localparam int FRAME_PROTOCOL_BITS       = 8;
  localparam int FRAME_PROTOCOL_AT         = FRAME_IP_CHECKSUM_AT + FRAME_IP_CHECKSUM_BITS;
  localparam int FRAME_TTL_BITS            = 8;
  localparam int FRAME_TTL_AT              = FRAME_PROTOCOL_AT + FRAME_PROTOCOL_BITS;
  localparam int FRAME_FRAGMENTING_BITS    = 16; // flags of IPv4, and the fragment's offset
  localparam int FRAME_FRAGMENTING_AT      = FRAME_TTL_AT + FRAME_TTL_BITS;
  localparam int FRAME_IDENTIFICATION_BITS = 16;
  localparam int FRAME_IDENTIFICATION_AT   = FRAME_FRAGMENTING_AT + FRAME_FRAGMENTING_BITS;
  localparam int FRAME_IP_BYTES_BITS       = 16; // IPv4 header and payload
  localparam int FRAME_IP_BYTES_AT         = FRAME_IDENTIFICATION_AT + FRAME_IDENTIFICATION_BITS;
  localparam int FRAME_TOS_BITS            = 8;
  localparam int FRAME_TOS_AT              = FRAME_IP_BYTES_AT + FRAME_IP_BYTES_BITS;
  localparam int FRAME_VERSION_IHL_BITS    = 8; // version of IPv4, and the length of its header
  localparam int FRAME_VERSION_IHL_AT      = FRAME_TOS_AT + FRAME_TOS_BITS;
  localparam int FRAME_ETHERTYPE_BITS      = 16;
  localparam int FRAME_ETHERTYPE_AT        = FRAME_VERSION_IHL_AT + FRAME_VERSION_IHL_BITS;
  localparam int FRAME_SOURCE_BITS         = 48; // MAC address
  localparam int FRAME_SOURCE_AT           = FRAME_ETHERTYPE_AT + FRAME_ETHERTYPE_BITS;
  localparam int FRAME_DESTINATION_BITS    = 48; // MAC address
  localparam int FRAME_DESTINATION_AT      = FRAME_SOURCE_AT + FRAME_SOURCE_BITS;

  // Bytes of each header, and of the tag behind the payload of a PARTIAL (F-4).
  localparam int ETHERNET_HEADER_BYTES = (BEAT_BITS - FRAME_ETHERTYPE_AT) / 8;
  localparam int IPV4_HEADER_BYTES     = (FRAME_ETHERTYPE_AT - FRAME_TO_IP_AT) / 8;
  localparam int UDP_HEADER_BYTES      = (FRAME_TO_IP_AT - FRAME_UDP_CHECKSUM_AT) / 8;
  localparam int TALLY_HEADER_BYTES    = FRAME_UDP_CHECKSUM_AT / 8;
  localparam int TAG_BYTES             = 8;

  // Layout of a head, which is the part of an output frame's headers that the tables decide.
  // tally_heads makes it, tally_egress completes it to headers. Above the fields below stand
  // `bitmap` (MEMBERS bits) and then `place` (PLACE_BITS bits), whose widths are parameters.
  //
  // The head of a frame that passes through has {bytes, port that it came in by} as its fragment;
  // its other fields have no meaning.
  localparam int HEAD_ASKER_BITS    = 8; // rank of the member that the frame is for
  localparam int HEAD_ASKER_AT      = 0;
  localparam int HEAD_TO_BITS       = 2; // a TO_ constant
  localparam int HEAD_TO_AT         = HEAD_ASKER_AT + HEAD_ASKER_BITS;
  localparam int HEAD_UNITS_BITS    = 8;
  localparam int HEAD_UNITS_AT      = HEAD_TO_AT + HEAD_TO_BITS;
  localparam int HEAD_RANK_BITS     = 8;
  localparam int HEAD_RANK_AT       = HEAD_UNITS_AT + HEAD_UNITS_BITS;
  localparam int HEAD_FRAGMENT_BITS = 32;
  localparam int HEAD_FRAGMENT_AT   = HEAD_RANK_AT + HEAD_RANK_BITS;
  localparam int HEAD_ELEMENT_BITS  = 3;
  localparam int HEAD_ELEMENT_AT    = HEAD_FRAGMENT_AT + HEAD_FRAGMENT_BITS;
  localparam int HEAD_PRIORITY_BITS = 8;
  localparam int HEAD_PRIORITY_AT   = HEAD_ELEMENT_AT + HEAD_ELEMENT_BITS;
  localparam int HEAD_FLAGS_BITS    = 8;
  localparam int HEAD_FLAGS_AT      = HEAD_PRIORITY_AT + HEAD_PRIORITY_BITS;
  localparam int HEAD_KIND_BITS     = 4;
  localparam int HEAD_KIND_AT       = HEAD_FLAGS_AT + HEAD_FLAGS_BITS;
  localparam int HEAD_BITMAP_AT     = HEAD_KIND_AT + HEAD_KIND_BITS;
  // A head's width is HEAD_FIXED_BITS + MEMBERS + PLACE_BITS; `place` is at
  // HEAD_FIXED_BITS + MEMBERS.
  localparam int HEAD_FIXED_BITS    = HEAD_BITMAP_AT;

  // Cycles from the operands of an f32 lane to its sum.
  localparam int F32_LATENCY = 6;

  // The protocol's version.
  localparam logic [3:0] VERSION = 4'd2;

  // Types of frames.
  localparam logic [3:0] KIND_LEAVE    = 4'd4;
  localparam logic [3:0] KIND_DATA     = 4'd5;
  localparam logic [3:0] KIND_RESULT   = 4'd6;
  localparam logic [3:0] KIND_PARTIAL  = 4'd7;
  localparam logic [3:0] KIND_REMIND   = 4'd8;
  localparam logic [3:0] KIND_NOT_HERE = 4'd9;
  localparam logic [3:0] KIND_NACK     = 4'd10;
  localparam logic [3:0] KIND_PROBE    = 4'd11;

  // Flags.
  localparam int FLAG_RESEND_BIT = 0;
  localparam int FLAG_OVERFLOW_BIT = 1;
  localparam int FLAG_MARKED_BIT = 4;
  localparam int FLAG_COLLISION_BIT = 5;
  localparam logic [7:0] FLAG_RESEND    = 8'h01;
  localparam logic [7:0] FLAG_OVERFLOW  = 8'h02;
  localparam logic [7:0] FLAG_FROM_PS   = 8'h04;
  localparam logic [7:0] FLAG_FINISHED  = 8'h08;
  localparam logic [7:0] FLAG_MARKED    = 8'h10;
  localparam logic [7:0] FLAG_COLLISION = 8'h20;
  // A sum has those of its contributions (TR-7).
  localparam logic [7:0] FLAGS_OF_SUM   = FLAG_OVERFLOW | FLAG_MARKED | FLAG_COLLISION;

  // Element types.
  localparam logic [2:0] ELEMENT_NONE  = 3'd0;
  localparam logic [2:0] ELEMENT_I32   = 3'd1;
  localparam logic [2:0] ELEMENT_F32   = 3'd2;
  localparam logic [2:0] ELEMENT_SCALE = 3'd3;
  localparam logic [2:0] ELEMENT_F16   = 3'd4; // the first sub-32-bit type; all above are, too

  // Ranks that belong to no worker.
  localparam logic [7:0] RANK_SWITCH = 8'd254;
  localparam logic [7:0] RANK_PS     = 8'd255;

  // Verdict of parser and admission on a frame.
  localparam logic [2:0] ACT_DISCARD       = 3'd0; // counted already
  localparam logic [2:0] ACT_PASS_THROUGH  = 3'd1; // not for the card: leaves unchanged
  localparam logic [2:0] ACT_DATA          = 3'd2;
  localparam logic [2:0] ACT_PS_RESULT     = 3'd3;
  localparam logic [2:0] ACT_WORKER_RESULT = 3'd4;
  localparam logic [2:0] ACT_REMIND        = 3'd5;
  localparam logic [2:0] ACT_NACK          = 3'd6;
  localparam logic [2:0] ACT_PROBE         = 3'd7;

  // Source of an output frame's payload.
  localparam logic [2:0] FROM_NOTHING = 3'd0; // no output frame
  localparam logic [2:0] FROM_ARRIVAL = 3'd1;
  localparam logic [2:0] FROM_SLOT    = 3'd2; // the slot's sum
  localparam logic [2:0] FROM_SUM     = 3'd3; // the slot's sum plus the arrival
  localparam logic [2:0] FROM_RING    = 3'd4;
  localparam logic [2:0] FROM_RAW     = 3'd5; // the arrival with its own headers

  // Kind of headers that an output frame gets.
  localparam logic [3:0] HEAD_PASS          = 4'd0; // PARTIAL of the arrival alone
  localparam logic [3:0] HEAD_EVICT         = 4'd1; // PARTIAL of the slot
  localparam logic [3:0] HEAD_FOLLOW        = 4'd2; // PARTIAL of the slot and the arrival
  localparam logic [3:0] HEAD_RESULT        = 4'd3;
  localparam logic [3:0] HEAD_AGAIN         = 4'd4; // RESULT from the ring
  localparam logic [3:0] HEAD_PS_RESULT     = 4'd5;
  localparam logic [3:0] HEAD_WORKER_RESULT = 4'd6;
  localparam logic [3:0] HEAD_NACK          = 4'd7; // NACK from the PS
  localparam logic [3:0] HEAD_NOT_HERE      = 4'd8;
  localparam logic [3:0] HEAD_PROBE         = 4'd9; // PROBE to the PS
  localparam logic [3:0] HEAD_ASK           = 4'd10; // NACK to the rank of tally_missing

  // Data written to the slot.
  localparam logic [1:0] WRITE_NOTHING = 2'd0;
  localparam logic [1:0] WRITE_ARRIVAL = 2'd1;
  localparam logic [1:0] WRITE_SUM     = 2'd2;

  // Receiver of an output frame.
  localparam logic [1:0] TO_PS     = 2'd0;
  localparam logic [1:0] TO_WORKER = 2'd1;
  localparam logic [1:0] TO_GROUP  = 2'd2; // on the ports of all workers
  localparam logic [1:0] TO_ASKER  = 2'd3; // with the group's addresses, on one worker's port

endpackage
/* verilator lint_on UNUSEDPARAM */

`default_nettype wire
