// SPDX-License-Identifier: Apache-2.0
//
// Constants that more than one module of the card knows.
//
// Numbers of the protocol are those of docs/PROTOCOL.md, section 2. Those of the
// counters are in tally_regs_pkg, which is generated with the registers that show them.

`default_nettype none

/* verilator lint_off UNUSEDPARAM */ // No module uses all of them.
package tally_pkg;

  // Bytes of a beat, which is also the unit of payloads and the size of all headers together.
  localparam int BEAT_BYTES = 64;
  localparam int BEAT_BITS = 8 * BEAT_BYTES;

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
  localparam int FLAG_MARKED_BIT = 4;
  localparam logic [7:0] FLAG_RESEND    = 8'h01;
  localparam logic [7:0] FLAG_OVERFLOW  = 8'h02;
  localparam logic [7:0] FLAG_FROM_PS   = 8'h04;
  localparam logic [7:0] FLAG_FINISHED  = 8'h08;
  localparam logic [7:0] FLAG_MARKED    = 8'h10;
  localparam logic [7:0] FLAG_COLLISION = 8'h20;

  // Element types.
  localparam logic [2:0] ELEMENT_NONE  = 3'd0;
  localparam logic [2:0] ELEMENT_I32   = 3'd1;
  localparam logic [2:0] ELEMENT_F32   = 3'd2;
  localparam logic [2:0] ELEMENT_SCALE = 3'd3;
  localparam logic [2:0] ELEMENT_F16   = 3'd4; // This one and all above are narrow.

  // Ranks that are no worker's.
  localparam logic [7:0] RANK_SWITCH = 8'd254;
  localparam logic [7:0] RANK_PS     = 8'd255;

  // What becomes of a frame, as parser and admission see it.
  localparam logic [2:0] ACT_DISCARD       = 3'd0; // counted already
  localparam logic [2:0] ACT_PASS_THROUGH  = 3'd1; // not the card's: leaves as it came
  localparam logic [2:0] ACT_DATA          = 3'd2;
  localparam logic [2:0] ACT_PS_RESULT     = 3'd3;
  localparam logic [2:0] ACT_WORKER_RESULT = 3'd4;
  localparam logic [2:0] ACT_REMIND        = 3'd5;
  localparam logic [2:0] ACT_NACK          = 3'd6;
  localparam logic [2:0] ACT_PROBE         = 3'd7;

  // Where the payload of an output frame comes from.
  localparam logic [2:0] FROM_NOTHING = 3'd0; // no output frame
  localparam logic [2:0] FROM_ARRIVAL = 3'd1;
  localparam logic [2:0] FROM_SLOT    = 3'd2; // what the slot has
  localparam logic [2:0] FROM_SUM     = 3'd3; // that and the arrival
  localparam logic [2:0] FROM_RING    = 3'd4;
  localparam logic [2:0] FROM_RAW     = 3'd5; // the arrival with its own headers

  // Which headers an output frame gets.
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
  localparam logic [3:0] HEAD_ASK           = 4'd10; // NACK from the card, to a rank that tally_missing names

  // What is written to the slot.
  localparam logic [1:0] WRITE_NOTHING = 2'd0;
  localparam logic [1:0] WRITE_ARRIVAL = 2'd1;
  localparam logic [1:0] WRITE_SUM     = 2'd2;

  // Whom an output frame is for.
  localparam logic [1:0] TO_PS     = 2'd0;
  localparam logic [1:0] TO_WORKER = 2'd1;
  localparam logic [1:0] TO_GROUP  = 2'd2; // on the ports of all workers
  localparam logic [1:0] TO_ASKER  = 2'd3; // with the group's addresses, on one worker's port

endpackage
/* verilator lint_on UNUSEDPARAM */

`default_nettype wire
