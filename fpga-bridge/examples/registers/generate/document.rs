//! The document: `docs/FPGA-REGISTERS.md`.

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

/// Text of `FPGA-REGISTERS.md`.
pub fn document(map: &Map) -> Result<String, String> {
    let mut out = "<!-- Generated from fpga-bridge/registers.json by
`cargo run -p tally-bridge --example registers`. Edit that file instead. -->

# Registers of the FPGA card

A register has 32 bits, little-endian, at a byte address of 16 bits. On a real card the registers
are a PCIe BAR, on the simulated card a Unix socket ([FPGA.md](FPGA.md)). Accesses are whole words.
The card answers SLVERR, and nothing changes, for an address outside these tables and for a write to
a register marked `read`. Bits outside these tables read as 0 and are ignored in writes.

Writing 1 to the bit of a `command` executes it; the bit reads as 0. While a place is being cleared
(`STATUS`, bit 0), commands are refused with SLVERR. The snapshot of the counters is the exception.

After a reset every writable register is 0.
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
    out.push_str("\n## Counters\n\nA counter has 64 bits: the lower word at its address, the upper word 4 bytes above.\nCounters start at 0 after reset, and wrap. `COUNTER_SNAPSHOT` latches all of them; reads return\nthe latched values.\n");
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
