//! The constants of the driver.

use super::{Map, number};
use std::fmt::Write;

/// `registers.rs`.
pub fn constants(map: &Map) -> Result<String, String> {
    let mut out = "//! The card's registers, by address, and its counters.
//!
//! Generated from `registers.json` by `cargo run -p tally-bridge --example registers`: change that, not this.
//! `docs/FPGA-REGISTERS.md` has the same as tables.

/// What [`ID`] reads.
"
    .to_owned();
    let id = number(&map.id)?;
    let _ = writeln!(
        out,
        "pub const ID_VALUE: u32 = 0x{:04x}_{:04x};",
        id >> 16,
        id & 0xffff
    );
    let _ = writeln!(out, "/// What [`INTERFACE`] reads.");
    let _ = writeln!(out, "pub const INTERFACE_VALUE: u32 = {};", map.interface);
    for register in map.registers() {
        let _ = writeln!(out, "\n/// {}", register.text);
        let _ = writeln!(
            out,
            "pub const {}: u16 = 0x{:03x};",
            register.name,
            number(&register.address)?
        );
        for field in &register.fields {
            let (high, low) = field.range()?;
            if high != low {
                continue;
            }
            let bit = field.signal(register).to_uppercase();
            let _ = writeln!(out, "/// Of [`{}`]: {}.", register.name, field.text);
            let _ = writeln!(out, "pub const BIT_{bit}: u32 = 1 << {low};");
        }
    }
    let _ = writeln!(
        out,
        "\n/// The first counter; each has its lower word first.\npub const COUNTERS_AT: u16 = 0x{:03x};",
        number(&map.counters.address)?
    );
    let _ = writeln!(
        out,
        "\n/// All registers but the counters: address and name.\npub const NAMES: [(u16, &str); {}] = [",
        map.registers().count()
    );
    for register in map.registers() {
        let _ = writeln!(out, "    ({0}, \"{0}\"),", register.name);
    }
    out.push_str("];\n");
    out.push_str("\n/// What a counter is about.\n#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]\npub enum Group {\n");
    for group in &map.counters.groups {
        let _ = writeln!(out, "    /// {}.\n    {},", group.title, group.group);
    }
    let _ = writeln!(
        out,
        "}}\n\n/// All counters, in the order of their addresses.\npub const COUNTERS: [(Group, &str); {}] = [",
        map.counter_number()
    );
    for group in &map.counters.groups {
        for counter in &group.counters {
            let _ = writeln!(out, "    (Group::{}, \"{}\"),", group.group, counter.name);
        }
    }
    out.push_str("];\n");
    Ok(out)
}
