//! Generates the files that `registers.json` describes.

use serde::Deserialize;
use std::collections::BTreeSet;
use std::path::Path;

mod document;
mod driver;
mod hardware;

/// The whole of `registers.json`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Map {
    id: String,
    interface: u32,
    blocks: Vec<Block>,
    counters: Counters,
}

/// A group of registers.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Block {
    title: String,
    text: String,
    registers: Vec<Register>,
}

/// A register of 32 bits.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Register {
    name: String,
    address: String,
    fields: Vec<Field>,
    text: String,
}

/// A field of a register.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Field {
    bits: String,
    access: Access,
    /// Source of a read-only field: a constant of the package, or a parameter.
    constant: Option<String>,
    /// Source of a read-only field: an input signal.
    input: Option<String>,
    /// Name of the field's signal. Default: the register's name.
    signal: Option<String>,
    /// Bits of the signal, if the field is not the whole. The highest part comes first.
    part: Option<String>,
    /// A command that is accepted even while a place is being cleared.
    #[serde(default)]
    always: bool,
    #[serde(default)]
    text: String,
}

#[derive(Clone, Copy, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Access {
    Ro,
    Rw,
    Command,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Counters {
    address: String,
    groups: Vec<Group>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    group: String,
    prefix: String,
    title: String,
    counters: Vec<Counter>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Counter {
    name: String,
    text: String,
}

impl Map {
    fn registers(&self) -> impl Iterator<Item = &Register> {
        self.blocks.iter().flat_map(|block| &block.registers)
    }

    fn counter_number(&self) -> usize {
        self.counters.groups.iter().map(|g| g.counters.len()).sum()
    }

    /// Checks that addresses, names and bits are unique and complete.
    fn check(&self) -> Result<(), String> {
        let counters_at = number(&self.counters.address)?;
        let mut addresses = BTreeSet::new();
        let mut names = BTreeSet::new();
        for register in self.registers() {
            let name = &register.name;
            let address = number(&register.address)?;
            if address % 4 != 0 || address >= counters_at || !addresses.insert(address) {
                return Err(format!(
                    "{name}: address {}: unaligned or taken",
                    register.address
                ));
            }
            if !names.insert(name.clone()) {
                return Err(format!("{name}: name used twice"));
            }
            let mut used = 0_u32;
            for field in &register.fields {
                let mask = field.mask()?;
                if used & mask != 0 {
                    return Err(format!("{name}: bits {} used twice", field.bits));
                }
                used |= mask;
                let has_source = field.constant.is_some() || field.input.is_some();
                if has_source != (field.access == Access::Ro) {
                    return Err(format!(
                        "{name}: bits {}: only `ro` has a source",
                        field.bits
                    ));
                }
                if field.access == Access::Command && field.width()? != 1 {
                    return Err(format!("{name}: a command has one bit"));
                }
            }
        }
        for group in &self.counters.groups {
            for counter in &group.counters {
                if !names.insert(counter.name.clone()) {
                    return Err(format!("{}: name used twice", counter.name));
                }
            }
        }
        Ok(())
    }
}

impl Field {
    /// Highest and lowest bit.
    fn range(&self) -> Result<(u32, u32), String> {
        range(&self.bits)
            .filter(|&(high, _)| high < 32)
            .ok_or_else(|| format!("bits `{}`", self.bits))
    }

    fn width(&self) -> Result<u32, String> {
        self.range().map(|(high, low)| high - low + 1)
    }

    fn mask(&self) -> Result<u32, String> {
        let (_, low) = self.range()?;
        Ok((u32::MAX >> (32 - self.width()?)) << low)
    }

    /// Highest and lowest bit in the signal.
    fn part(&self) -> Result<Option<(u32, u32)>, String> {
        let part = self.part.as_deref();
        part.map(|text| range(text).ok_or_else(|| format!("part `{text}`")))
            .transpose()
    }

    /// Name of the signal.
    fn signal(&self, register: &Register) -> String {
        let own = self.signal.as_ref().or(self.input.as_ref());
        own.cloned().unwrap_or_else(|| register.name.to_lowercase())
    }
}

impl Counter {
    /// Name as a constant: letters, digits and `_`.
    fn constant(&self, group: &Group) -> String {
        let name = self
            .name
            .strip_prefix("stream-")
            .map_or_else(|| self.name.clone(), |rest| format!("stream_{rest}"));
        format!("{}_{}", group.prefix, name.replace('-', "_").to_uppercase())
    }
}

fn range(text: &str) -> Option<(u32, u32)> {
    let (high, low) = text.split_once(':').unwrap_or((text, text));
    let (high, low) = (high.parse().ok()?, low.parse().ok()?);
    (low <= high).then_some((high, low))
}

fn number(text: &str) -> Result<u32, String> {
    let digits = text
        .strip_prefix("0x")
        .ok_or_else(|| format!("`{text}` is not hexadecimal"))?;
    u32::from_str_radix(digits, 16).map_err(|error| format!("`{text}`: {error}"))
}

/// Path, relative to the package's folder, and text of each file.
///
/// # Errors
/// Says which part of `registers.json` is wrong.
pub fn files(folder: &Path) -> Result<Vec<(&'static str, String)>, String> {
    let path = folder.join("registers.json");
    let at = |error: String| format!("{}: {error}", path.display());
    let mut text = std::fs::read(&path).map_err(|error| at(error.to_string()))?;
    let map: Map = simd_json::from_slice(&mut text).map_err(|error| at(error.to_string()))?;
    map.check().map_err(at)?;
    Ok(vec![
        ("rtl/tally_regs_pkg.sv", hardware::package(&map)?),
        ("rtl/tally_regs.sv", hardware::module(&map)?),
        ("src/registers.rs", driver::constants(&map)?),
        ("../docs/FPGA-REGISTERS.md", document::document(&map)?),
    ])
}
