//! The document.

use super::{Access, Field, Map, Register, number};
use std::fmt::Write;

fn access(field: &Field) -> &'static str {
    match field.access {
        Access::Ro => "read",
        Access::Rw => "read, write",
        Access::Command => "command",
    }
}

fn row(out: &mut String, register: &Register) -> Result<(), String> {
    let address = number(&register.address)?;
    let whole = match register.fields.as_slice() {
        [field] if field.text.is_empty() => Some(field),
        _ => None,
    };
    let (bits, kind) = whole.map_or(("", ""), |field| (field.bits.as_str(), access(field)));
    let _ = writeln!(
        out,
        "| `0x{address:03x}` | `{}` | {bits} | {kind} | {} |",
        register.name, register.text
    );
    if whole.is_none() {
        for field in &register.fields {
            let _ = writeln!(
                out,
                "| | | {} | {} | {} |",
                field.bits,
                access(field),
                field.text
            );
        }
    }
    Ok(())
}

/// `FPGA-REGISTERS.md`.
pub fn document(map: &Map) -> Result<String, String> {
    let mut out = "<!-- Generated from fpga-bridge/registers.json by `cargo run -p tally-bridge --example registers`: change that, not this. -->

# Registers of the FPGA card

32 bits each, little-endian, at byte addresses of 16 bits. On a real card they are a PCIe BAR, on the simulated one a
Unix socket ([FPGA.md](FPGA.md)). Only whole words are read and written. What is not in these tables cannot be accessed,
and what is marked `read` cannot be written: the card answers SLVERR, and nothing changes. Bits that no table has read
as 0, and are ignored when written.

A `command` happens when 1 is written to its bit; it reads as 0. While a place is being cleared (`STATUS`, bit 0),
commands are refused with SLVERR, but for that which latches the counters.

After a reset every register that can be written is 0.
"
    .to_owned();
    for block in &map.blocks {
        let _ = writeln!(out, "\n## {}\n", block.title);
        if !block.text.is_empty() {
            let _ = writeln!(out, "{}\n", block.text);
        }
        out.push_str("| address | register | bits | access | |\n|---|---|---|---|---|\n");
        for register in &block.registers {
            row(&mut out, register)?;
        }
    }
    let mut address = number(&map.counters.address)?;
    out.push_str("\n## Counters\n\n64 bits each, the lower word at the address given, the upper one 4 bytes on. They count from reset and wrap.\n`COUNTER_SNAPSHOT` latches all of them; what is read is what they were then.\n");
    for group in &map.counters.groups {
        let _ = writeln!(
            out,
            "\n### {}\n\n| address | counter | |\n|---|---|---|",
            group.title
        );
        for counter in &group.counters {
            let _ = writeln!(
                out,
                "| `0x{address:03x}` | `{}` | {} |",
                counter.name, counter.text
            );
            address += 8;
        }
    }
    Ok(out)
}
