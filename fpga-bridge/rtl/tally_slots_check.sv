// SPDX-License-Identifier: Apache-2.0
//
// Checks of tally_slots in simulation, against its own record of contributions.
//
// It checks that no slot leaks, that only occupied slots are freed, and that a slot's bitmap has as
// many bits as the slot was given contributions.

`default_nettype none

module tally_slots_check #(
    parameter int SLOTS = 1024,
    parameter int MEMBERS = 16,
    localparam int SLOT_BITS = $clog2(SLOTS)
) (
    input wire logic                 clk,
    input wire logic                 rst,
    // A frame is in stage `decide` of tally_slots.
    input wire logic                 valid,
    input wire logic [SLOT_BITS-1:0] slot,
    input wire logic                 occupied,
    input wire logic                 hit,
    input wire logic [MEMBERS-1:0]   bitmap,
    input wire logic                 joins,
    input wire logic                 takes,
    input wire logic                 frees,
    input wire logic                 stays,
    // A slot is cleared during a walk of the tables; a walk of all places has ended.
    input wire logic                 clears,
    input wire logic [SLOT_BITS-1:0] clears_slot,
    input wire logic                 cleared_all
);

`ifndef SYNTHESIS
  // Contributions in each slot, 0 if it is free. The record begins after the first clear of all.
  logic [6:0] contributions[0:SLOTS-1];
  logic [31:0] taken, freed, in_use;
  logic is_open;

  wire was_taken = contributions[slot] != 0;

  always_ff @(posedge clk) begin
    if (is_open && valid && !rst) begin
      assert (occupied == was_taken) else $error("slot %0d: occupied is %0d, but it has %0d contributions", slot, occupied, contributions[slot]);
      assert (!occupied || 32'($countones(bitmap)) == 32'(contributions[slot]))
      else $error("slot %0d: bitmap %b, but %0d contributions", slot, bitmap, contributions[slot]);
      assert (!(joins && stays && !takes) || hit) else $error("slot %0d: contribution of another fragment", slot);
      assert (taken - freed == in_use) else $error("slots: %0d taken, %0d freed, but %0d in use", taken, freed, in_use);
      if (takes) begin
        contributions[slot] <= 7'd1;
        taken <= taken + 32'd1;
        if (was_taken) freed <= freed + 32'd1;
        else in_use <= in_use + 32'd1;
      end else if (frees && was_taken) begin
        contributions[slot] <= 7'd0;
        freed <= freed + 32'd1;
        in_use <= in_use - 32'd1;
      end else if (joins && stays) contributions[slot] <= contributions[slot] + 7'd1;
    end
    if (clears) begin
      contributions[clears_slot] <= 7'd0;
      if (is_open && contributions[clears_slot] != 0) begin
        freed <= freed + 32'd1;
        in_use <= in_use - 32'd1;
      end
    end
    if (cleared_all && !rst) begin
      if (is_open) assert (in_use == 0) else $error("slots: %0d in use after a clear of all", in_use);
      is_open <= 1'b1;
    end
    if (rst) begin
      is_open <= 1'b0;
      taken <= 32'd0;
      freed <= 32'd0;
      in_use <= 32'd0;
    end
  end
`endif

endmodule

`default_nettype wire
