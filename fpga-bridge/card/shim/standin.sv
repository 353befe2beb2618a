// Stands in until the pipeline is here: every frame passes.
module tally_card #(
  parameter int SLOTS = 1024, PAYLOAD_BYTES = 1024, JOBS = 8, MEMBERS = 16, RING = 512, F32 = 1, DATA_BITS = 512
) (
  input  logic clk, input logic rst, input logic tick,
  input  logic [DATA_BITS-1:0] s_axis_tdata, input logic [DATA_BITS/8-1:0] s_axis_tkeep,
  input  logic s_axis_tvalid, input logic s_axis_tlast, input logic s_axis_tuser, output logic s_axis_tready,
  output logic [DATA_BITS-1:0] m_axis_tdata, output logic [DATA_BITS/8-1:0] m_axis_tkeep,
  output logic m_axis_tvalid, output logic m_axis_tlast, input logic m_axis_tready,
  input  logic [15:0] s_axil_awaddr, input logic s_axil_awvalid, output logic s_axil_awready,
  input  logic [31:0] s_axil_wdata, input logic [3:0] s_axil_wstrb, input logic s_axil_wvalid, output logic s_axil_wready,
  output logic [1:0] s_axil_bresp, output logic s_axil_bvalid, input logic s_axil_bready,
  input  logic [15:0] s_axil_araddr, input logic s_axil_arvalid, output logic s_axil_arready,
  output logic [31:0] s_axil_rdata, output logic [1:0] s_axil_rresp, output logic s_axil_rvalid, input logic s_axil_rready,
  output logic busy
);
  assign s_axis_tready = !m_axis_tvalid || m_axis_tready;
  assign busy = m_axis_tvalid;
  always_ff @(posedge clk) begin
    if (s_axis_tready) begin
      m_axis_tvalid <= s_axis_tvalid; m_axis_tdata <= s_axis_tdata; m_axis_tkeep <= s_axis_tkeep; m_axis_tlast <= s_axis_tlast;
    end
    if (rst) m_axis_tvalid <= 0;
  end
  assign s_axil_awready = s_axil_awvalid && s_axil_wvalid && !s_axil_bvalid;
  assign s_axil_wready = s_axil_awready;
  assign s_axil_arready = !s_axil_rvalid;
  assign s_axil_bresp = 0;
  assign s_axil_rresp = 0;
  always_ff @(posedge clk) begin
    if (s_axil_awready) s_axil_bvalid <= 1; else if (s_axil_bready) s_axil_bvalid <= 0;
    if (s_axil_arready && s_axil_arvalid) begin s_axil_rvalid <= 1; s_axil_rdata <= {16'h5441, s_axil_araddr}; end
    else if (s_axil_rready) s_axil_rvalid <= 0;
    if (rst) begin s_axil_bvalid <= 0; s_axil_rvalid <= 0; end
  end
`ifndef SYNTHESIS
  always_ff @(posedge clk) if (!rst) assert (!tick || SLOTS > 0) else $error("tick");
`endif
endmodule
