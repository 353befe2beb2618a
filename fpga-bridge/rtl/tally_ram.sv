// SPDX-License-Identifier: Apache-2.0
//
// Memory with one read port, one write port and a registered read, as block RAM and UltraRAM are.
//
// A read of the word that is written in the same cycle returns the old word. The output keeps its
// value while `read` is low. OUTPUT_REGISTER adds a register behind the memory, and a cycle. There
// is no reset: a user that needs known contents writes them.

`default_nettype none

module tally_ram #(
    parameter int WIDTH = 8,
    parameter int DEPTH = 16,
    parameter int OUTPUT_REGISTER = 0,
    localparam int ADDRESS_BITS = DEPTH > 1 ? $clog2(DEPTH) : 1
) (
    input  wire logic                    clk,
    input  wire logic                    read,
    input  wire logic [ADDRESS_BITS-1:0] read_at,
    output logic      [WIDTH-1:0]        read_data,
    input  wire logic                    write,
    input  wire logic [ADDRESS_BITS-1:0] write_at,
    input  wire logic [WIDTH-1:0]        write_data
);

  logic [WIDTH-1:0] words[0:DEPTH-1];

  logic [WIDTH-1:0] word;

  always_ff @(posedge clk) if (read) word <= words[read_at];
  always_ff @(posedge clk) if (write) words[write_at] <= write_data;

  if (OUTPUT_REGISTER != 0) begin : registered
    always_ff @(posedge clk) read_data <= word;
  end else begin : direct
    assign read_data = word;
  end

endmodule

`default_nettype wire
