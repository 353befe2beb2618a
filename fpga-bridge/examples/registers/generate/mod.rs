//! From the description of the registers to the files that follow from it.

use serde::Deserialize;
use std::collections::BTreeSet;
use std::path::Path;

mod document;
mod driver;
mod hardware;

/// The whole description.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Map {
    id: String,
    interface: u32,
    blocks: Vec<Block>,
    counters: Counters,
}

/// Registers that belong together.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Block {
    title: String,
    text: String,
    registers: Vec<Register>,
}

/// 32 bits at an address.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Register {
    name: String,
    address: String,
    fields: Vec<Field>,
    text: String,
}

/// Some bits of a register.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Field {
    bits: String,
    access: Access,
    /// What a read-only field is: a constant of the package or a parameter,
    constant: Option<String>,
    /// or a signal that comes in.
    input: Option<String>,
    /// What the field is called outside; the register's own name if it is the only one.
    signal: Option<String>,
    /// Which bits of the signal it is, if it is not the whole; those parts come highest first.
    part: Option<String>,
    /// A command that is taken even while a place is being cleared.
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

    /// What the files rely on.
    fn check(&self) -> Result<(), String> {
        let counters_at = number(&self.counters.address)?;
        let mut addresses = BTreeSet::new();
        let mut names = BTreeSet::new();
        for register in self.registers() {
            let name = &register.name;
            let address = number(&register.address)?;
            if address % 4 != 0 || address >= counters_at || !addresses.insert(address) {
                return Err(format!("{name}: the address {}", register.address));
            }
            if !names.insert(name.clone()) {
                return Err(format!("{name} is there twice"));
            }
            let mut used = 0_u32;
            for field in &register.fields {
                let mask = field.mask()?;
                if used & mask != 0 {
                    return Err(format!("{name}: bits {} are there twice", field.bits));
                }
                used |= mask;
                let has_source = field.constant.is_some() || field.input.is_some();
                if has_source != (field.access == Access::Ro) {
                    return Err(format!("{name}: where do bits {} come from", field.bits));
                }
                if field.access == Access::Command && field.width()? != 1 {
                    return Err(format!("{name}: a command is one bit"));
                }
            }
        }
        for group in &self.counters.groups {
            for counter in &group.counters {
                if !names.insert(counter.name.clone()) {
                    return Err(format!("{} is there twice", counter.name));
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

    /// The bits of its signal that it is.
    fn part(&self) -> Result<Option<(u32, u32)>, String> {
        let part = self.part.as_deref();
        part.map(|text| range(text).ok_or_else(|| format!("part `{text}`")))
            .transpose()
    }

    /// What it is called outside.
    fn signal(&self, register: &Register) -> String {
        let own = self.signal.as_ref().or(self.input.as_ref());
        own.cloned().unwrap_or_else(|| register.name.to_lowercase())
    }
}

impl Counter {
    /// Its name where only letters and `_` are allowed.
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

/// The files, by path relative to the package's folder.
///
/// # Errors
/// What is wrong with the description.
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
