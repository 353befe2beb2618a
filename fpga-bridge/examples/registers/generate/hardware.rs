//! The SystemVerilog.

use super::{Access, Field, Map, Register, number};
use std::collections::BTreeSet;
use std::fmt::Write;

const HEAD: &str = "// Generated from registers.json by `cargo run -p tally-bridge --example registers`: change that, not this.\n";

fn hex(text: &str) -> Result<String, String> {
    Ok(format!("16'h{:04x}", number(text)?))
}

fn bits(high: u32, low: u32) -> String {
    if high == low {
        format!("[{low}]")
    } else {
        format!("[{high}:{low}]")
    }
}

fn port(width: u32) -> String {
    if width == 1 {
        String::new()
    } else {
        format!(" [{}:0]", width - 1)
    }
}

/// All fields with that access.
fn fields(map: &Map, access: Access) -> impl Iterator<Item = (&Register, &Field)> {
    map.registers()
        .flat_map(|register| register.fields.iter().map(move |field| (register, field)))
        .filter(move |(_, field)| field.access == access)
}

/// Constants: addresses, and the places of the counters.
pub fn package(map: &Map) -> Result<String, String> {
    let mut out = HEAD.to_owned();
    out.push_str("// Addresses of the registers, and which counter is where among them.\n\n");
    out.push_str("/* verilator lint_off UNUSEDPARAM */\npackage tally_regs_pkg;\n\n");
    let _ = writeln!(
        out,
        "  localparam logic [31:0] ID = 32'h{:08x};",
        number(&map.id)?
    );
    let _ = writeln!(
        out,
        "  localparam logic [31:0] INTERFACE = 32'd{};\n",
        map.interface
    );
    for register in map.registers() {
        let _ = writeln!(
            out,
            "  localparam logic [15:0] AT_{} = {};",
            register.name,
            hex(&register.address)?
        );
    }
    let _ = writeln!(
        out,
        "  localparam logic [15:0] AT_COUNTERS = {};\n",
        hex(&map.counters.address)?
    );
    let _ = writeln!(out, "  localparam int COUNTERS = {};", map.counter_number());
    let mut index = 0;
    for group in &map.counters.groups {
        let _ = writeln!(out, "\n  // {}", group.title);
        for counter in &group.counters {
            let _ = writeln!(
                out,
                "  localparam int {} = {index};",
                counter.constant(group)
            );
            index += 1;
        }
    }
    out.push_str("\nendpackage\n/* verilator lint_on UNUSEDPARAM */\n");
    Ok(out)
}

/// The register block.
pub fn module(map: &Map) -> Result<String, String> {
    let mut out = HEAD.to_owned();
    out.push_str(
        "//
// The registers of the card, behind AXI4-Lite.
//
// Whole words only. An address that is none, a write to what can only be read, a write of less than a word, and a
// command while a place is being cleared are answered SLVERR, and change nothing. Whatever is asked is answered within
// four cycles. A command is a strobe of one cycle; what it is about is in the other outputs in that cycle.

`default_nettype none

module tally_regs #(
  parameter int SLOTS = 1024,
  parameter int PAYLOAD_BYTES = 1024,
  parameter int JOBS = 8,
  parameter int MEMBERS = 16,
  parameter int RING = 512,
  parameter int F32 = 1,
  parameter int CLOCK_KHZ = 250000,
  parameter int COUNTERS = tally_regs_pkg::COUNTERS
) (
  input  wire logic        clk,
  input  wire logic        rst,

  input  wire logic [15:0] s_axil_awaddr,
  input  wire logic        s_axil_awvalid,
  output logic             s_axil_awready,
  input  wire logic [31:0] s_axil_wdata,
  input  wire logic [3:0]  s_axil_wstrb,
  input  wire logic        s_axil_wvalid,
  output logic             s_axil_wready,
  output logic [1:0]       s_axil_bresp,
  output logic             s_axil_bvalid,
  input  wire logic        s_axil_bready,
  input  wire logic [15:0] s_axil_araddr,
  input  wire logic        s_axil_arvalid,
  output logic             s_axil_arready,
  output logic [31:0]      s_axil_rdata,
  output logic [1:0]       s_axil_rresp,
  output logic             s_axil_rvalid,
  input  wire logic        s_axil_rready,

",
    );
    for (register, field) in fields(map, Access::Ro) {
        let Some(input) = &field.input else { continue };
        let text = if field.text.is_empty() {
            register.text.trim_end_matches('.')
        } else {
            &field.text
        };
        let (first, rest) = text.split_at(1);
        let _ = writeln!(
            out,
            "  // {}{rest}.\n  input  wire logic{} {input},",
            first.to_uppercase(),
            port(field.width()?)
        );
    }
    out.push_str(
        "  // Counter n in bits 64n and above, as they were at the last `counter_snapshot`.\n",
    );
    out.push_str("  input  wire logic [64*COUNTERS-1:0] counters,\n\n");
    let mut outputs = Vec::new();
    let mut seen = BTreeSet::new();
    for (register, field) in fields(map, Access::Rw) {
        let signal = field.signal(register);
        let width = field.part()?.map_or(field.width()?, |(high, _)| high + 1);
        if seen.insert(signal.clone()) {
            outputs.push(format!("  output logic{} {signal}", port(width)));
        }
    }
    for (register, field) in fields(map, Access::Command) {
        outputs.push(format!("  output logic {}", field.signal(register)));
    }
    out.push_str(&outputs.join(",\n"));
    out.push_str(
        "
);

  localparam logic [1:0] OKAY = 2'b00;
  localparam logic [1:0] SLVERR = 2'b10;

  // Writes: address and data come in any order, and each waits for the other here.
  logic [15:0] write_address;
  logic [31:0] write_data;
  logic [3:0]  write_strobes;
  logic        has_address, has_data;

  wire do_write = has_address && has_data && !s_axil_bvalid;

  assign s_axil_awready = !has_address;
  assign s_axil_wready = !has_data;

  // Whether the address has something to write to, and whether the data is a command that has to wait.
  logic writable, refused;

  always_comb begin
    writable = 1'b0;
    refused = 1'b0;
    case (write_address)
",
    );
    for register in map.registers() {
        let fields = &register.fields;
        if fields.iter().all(|field| field.access == Access::Ro) {
            continue;
        }
        let mut waits = Vec::new();
        for field in fields {
            if field.access == Access::Command && !field.always {
                let (high, low) = field.range()?;
                waits.push(format!("write_data{}", bits(high, low)));
            }
        }
        let at = &register.name;
        if waits.is_empty() {
            let _ = writeln!(out, "      tally_regs_pkg::AT_{at}: writable = 1'b1;");
        } else {
            let any = waits.join(" || ");
            let any = if waits.len() > 1 {
                format!("({any})")
            } else {
                any
            };
            let _ = writeln!(
                out,
                "      tally_regs_pkg::AT_{at}: begin\n        writable = 1'b1;\n        refused = clearing && {any};\n      end"
            );
        }
    }
    out.push_str(
        "      default: ;
    endcase
  end

  wire accepted = do_write && writable && !refused && write_strobes == 4'hf;

  always_ff @(posedge clk) begin
    if (rst) begin
      has_address <= 1'b0;
      has_data <= 1'b0;
      s_axil_bvalid <= 1'b0;
      s_axil_bresp <= OKAY;
    end else begin
      if (s_axil_awvalid && s_axil_awready) has_address <= 1'b1;
      if (s_axil_wvalid && s_axil_wready) has_data <= 1'b1;
      if (s_axil_bvalid && s_axil_bready) s_axil_bvalid <= 1'b0;
      if (do_write) begin
        has_address <= 1'b0;
        has_data <= 1'b0;
        s_axil_bvalid <= 1'b1;
        s_axil_bresp <= accepted ? OKAY : SLVERR;
      end
    end
    if (s_axil_awvalid && s_axil_awready) write_address <= s_axil_awaddr;
    if (s_axil_wvalid && s_axil_wready) begin
      write_data <= s_axil_wdata;
      write_strobes <= s_axil_wstrb;
    end
  end

  always_ff @(posedge clk) begin
",
    );
    for (register, field) in fields(map, Access::Command) {
        let (high, low) = field.range()?;
        let _ = writeln!(
            out,
            "    {} <= !rst && accepted && write_address == tally_regs_pkg::AT_{} && write_data{};",
            field.signal(register),
            register.name,
            bits(high, low)
        );
    }
    out.push_str("    if (rst) begin\n");
    for signal in &seen {
        let _ = writeln!(out, "      {signal} <= 0;");
    }
    out.push_str("    end else if (accepted) begin\n      case (write_address)\n");
    for (register, field) in fields(map, Access::Rw) {
        let (high, low) = field.range()?;
        let part = if (high, low) == (31, 0) {
            String::new()
        } else {
            bits(high, low)
        };
        let _ = writeln!(
            out,
            "        tally_regs_pkg::AT_{}: {} <= write_data{part};",
            register.name,
            place(register, field)?
        );
    }
    out.push_str(
        "        default: ;
      endcase
    end
  end

  // Reads: the address is taken, then looked up, then answered.
  logic [15:0] read_address;
  logic        is_reading;

  assign s_axil_arready = !is_reading && !s_axil_rvalid;

  logic [31:0] found;
  logic        readable;

  wire [15:0] counter_offset = read_address - tally_regs_pkg::AT_COUNTERS;
  wire is_counter = read_address >= tally_regs_pkg::AT_COUNTERS
      && counter_offset[1:0] == 2'b00
      && {18'b0, counter_offset[15:2]} < 2 * COUNTERS;

  always_comb begin
    found = 32'b0;
    readable = 1'b1;
    case (read_address)
",
    );
    for register in map.registers() {
        let _ = writeln!(
            out,
            "      tally_regs_pkg::AT_{}: {}",
            register.name,
            read_value(register)?
        );
    }
    out.push_str(
        "      default: begin
        readable = is_counter;
        if (is_counter) found = counters[32 * counter_offset[15:2] +: 32];
      end
    endcase
  end

  always_ff @(posedge clk) begin
    if (rst) begin
      is_reading <= 1'b0;
      s_axil_rvalid <= 1'b0;
      s_axil_rresp <= OKAY;
      s_axil_rdata <= 32'b0;
    end else begin
      if (s_axil_arvalid && s_axil_arready) is_reading <= 1'b1;
      if (s_axil_rvalid && s_axil_rready) s_axil_rvalid <= 1'b0;
      if (is_reading) begin
        is_reading <= 1'b0;
        s_axil_rvalid <= 1'b1;
        s_axil_rresp <= readable ? OKAY : SLVERR;
        s_axil_rdata <= found;
      end
    end
    if (s_axil_arvalid && s_axil_arready) read_address <= s_axil_araddr;
  end

`ifndef SYNTHESIS
  // A command is about what was written before it, and is never given while it could not be taken.
  logic was_clearing;
  always_ff @(posedge clk) begin
    was_clearing <= clearing;
",
    );
    let waiting: Vec<_> = fields(map, Access::Command)
        .filter(|(_, field)| !field.always)
        .map(|(register, field)| field.signal(register))
        .collect();
    let _ = writeln!(
        out,
        "    if (!rst) assert (!(was_clearing && ({})));",
        waiting.join(" || ")
    );
    out.push_str(
        "  end
  initial begin
    assert (COUNTERS == tally_regs_pkg::COUNTERS) else $fatal(1, \"COUNTERS is not that of registers.json\");
    assert (JOBS >= 1 && JOBS <= 32) else $fatal(1, \"JOBS must be 1 to 32\");
    assert (MEMBERS >= 2 && MEMBERS <= 64) else $fatal(1, \"MEMBERS must be 2 to 64\");
  end
`endif

endmodule

`default_nettype wire
",
    );
    Ok(out)
}

/// Where a field that can be written is.
fn place(register: &Register, field: &Field) -> Result<String, String> {
    let part = field.part()?.map(|(high, low)| bits(high, low));
    Ok(field.signal(register) + &part.unwrap_or_default())
}

fn read_value(register: &Register) -> Result<String, String> {
    let mut lines = Vec::new();
    for field in &register.fields {
        let (high, low) = field.range()?;
        let part = if (high, low) == (31, 0) {
            String::new()
        } else {
            bits(high, low)
        };
        let value = match (&field.constant, &field.input, field.access) {
            (Some(name), ..) if name == "ID" || name == "INTERFACE" => {
                format!("tally_regs_pkg::{name}")
            }
            (Some(name), ..) if high == low => format!("{name} != 0"),
            (Some(name), ..) => name.clone(),
            (_, Some(input), _) => input.clone(),
            (.., Access::Command) => continue,
            _ => place(register, field)?,
        };
        lines.push(format!("found{part} = {value};"));
    }
    Ok(match lines.as_slice() {
        [] => ";".to_owned(),
        [line] => line.clone(),
        _ => format!("begin\n        {}\n      end", lines.join("\n        ")),
    })
}
