// SPDX-License-Identifier: Apache-2.0
//
// Table of the loaded jobs, and the commands that change it.
//
// A job's place is its index in all tables, 0 to JOBS-1. A command (load, unload, clear) raises
// `hold`, which keeps new frames back. It then waits until no frame is between parser and egress
// (`quiet`), so that no frame meets half of a change. Unload and clear then walk the tables of the
// slots (`walk`) and free the place. After reset, everything is cleared before the first frame.
//
// `load` of a place that has the same job and epoch replaces the place's registers and nothing
// else. Another epoch needs `unload` before it. A command is lost if it arrives while `busy` is
// high.

`default_nettype none

module tally_jobs #(
    parameter int JOBS = 8,
    parameter int MEMBERS = 16,
    localparam int PLACE_BITS = JOBS > 1 ? $clog2(JOBS) : 1
) (
    input  wire logic                    clk,
    input  wire logic                    rst,
    // Commands, with the registers that they read.
    input  wire logic                    clear_all,
    input  wire logic                    load,
    input  wire logic                    unload,
    input  wire logic [PLACE_BITS-1:0]   select,
    input  wire logic [15:0]             number,
    input  wire logic [15:0]             epoch,
    input  wire logic [7:0]              units,
    input  wire logic [7:0]              workers,
    input  wire logic [15:0]             ports,
    input  wire logic [31:0]             hash,
    output logic                         busy,
    // The pipeline.
    output logic                         hold,
    input  wire logic                    quiet,
    output logic                         walk,
    output logic                         walk_all, // all places, not only walk_place
    output logic      [PLACE_BITS-1:0]   walk_place,
    input  wire logic                    walked,
    // The table, place 0 in the lowest bits.
    output logic      [JOBS-1:0]         live,
    output logic      [16*JOBS-1:0]      job_number,
    output logic      [16*JOBS-1:0]      job_epoch,
    output logic      [8*JOBS-1:0]       job_units,
    output logic      [8*JOBS-1:0]       job_workers,
    output logic      [MEMBERS*JOBS-1:0] job_all, // bitmap of all ranks
    output logic      [16*JOBS-1:0]      job_ports,
    output logic      [32*JOBS-1:0]      job_hash
);

  // Cycles of `quiet` in a row before a command is executed. Frames in flight when `hold` rose
  // reach a stage that `quiet` watches within this time.
  localparam int SILENCE = 15;

  typedef enum logic [1:0] {READY, WAITS, WALKS} state_t;
  state_t state;
  logic [3:0] silence;

  logic is_load;
  logic [15:0] next_number, next_epoch, next_ports;
  logic [7:0] next_units, next_workers;
  logic [31:0] next_hash;
  logic [MEMBERS-1:0] next_all;

  always_comb for (int i = 0; i < MEMBERS; i++) next_all[i] = 32'(next_workers) > i;

  assign busy = state != READY;
  assign hold = state != READY;

  always_ff @(posedge clk) begin
    walk <= 1'b0;
    silence <= quiet ? silence + 4'(silence != 4'(SILENCE)) : 4'd0;
    case (state)
      READY: begin
        silence <= 4'd0;
        is_load <= load && !unload && !clear_all;
        walk_all <= clear_all;
        walk_place <= select;
        next_number <= number;
        next_epoch <= epoch;
        next_units <= units;
        next_workers <= workers;
        next_ports <= ports;
        next_hash <= hash;
        if (load || unload || clear_all) state <= WAITS;
      end
      WAITS: if (silence == 4'(SILENCE)) begin
        if (is_load) state <= READY;
        else begin
          state <= WALKS;
          walk  <= 1'b1;
        end
        for (int i = 0; i < JOBS; i++) begin
          if (walk_all || 32'(walk_place) == i) live[i] <= is_load;
          if (is_load && 32'(walk_place) == i) begin
            job_number[16*i+:16] <= next_number;
            job_epoch[16*i+:16] <= next_epoch;
            job_units[8*i+:8] <= next_units;
            job_workers[8*i+:8] <= next_workers;
            job_all[MEMBERS*i+:MEMBERS] <= next_all;
            job_ports[16*i+:16] <= next_ports;
            job_hash[32*i+:32] <= next_hash;
          end
        end
      end
      default: if (walked) state <= READY;
    endcase
    if (rst) begin
      state <= WAITS;
      silence <= 4'd0;
      is_load <= 1'b0;
      walk_all <= 1'b1;
      live <= '0;
    end
  end

endmodule

`default_nettype wire
