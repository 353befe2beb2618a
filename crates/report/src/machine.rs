//! The machine that a measurement was made on, as far as it bears on the result. No host name.

use std::collections::BTreeMap;
use std::{fs, thread};

use serde::{Deserialize, Serialize};

/// What a reader needs to know of the machine. A field that could not be read is `None`.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Machine {
    /// The processor's name as the kernel gives it.
    pub cpu: Option<String>,
    /// CPU family and model numbers, which say more than a cloud's name for a processor.
    pub cpu_family: Option<u32>,
    /// See `cpu_family`.
    pub cpu_model: Option<u32>,
    /// Logical cores that this process may use.
    pub cores: usize,
    /// Whether a hypervisor says that it is there.
    pub virtual_machine: bool,
    /// Size of each cache that the first core reaches, by name (`L1d`, `L1i`, `L2`, `L3`).
    #[serde(default)]
    pub cache_bytes: BTreeMap<String, usize>,
    /// Main memory.
    pub memory_bytes: Option<u64>,
    /// The operating system's kernel.
    pub kernel: Option<String>,
    /// Vector and other instruction sets that matter here.
    #[serde(default)]
    pub isa_features: Vec<String>,
}

/// Instruction sets worth naming, by prefix.
const ISA_PREFIXES: [&str; 11] = [
    "sse4", "ssse3", "avx", "fma", "f16c", "bmi", "gfni", "erms", "fsrm", "asimd", "sve",
];

impl Machine {
    /// Looks at the machine that this process runs on.
    #[must_use]
    pub fn detect() -> Self {
        let cpuinfo = read("/proc/cpuinfo").unwrap_or_default();
        let field = |name: &str| value_of(&cpuinfo, name).map(str::to_owned);
        let flags = field("flags")
            .or_else(|| field("Features"))
            .unwrap_or_default();
        let mut isa_features: Vec<_> = flags
            .split_whitespace()
            .filter(|flag| ISA_PREFIXES.iter().any(|prefix| flag.starts_with(prefix)))
            .map(str::to_owned)
            .collect();
        isa_features.sort();
        Self {
            cpu: field("model name").or_else(|| field("CPU part")),
            cpu_family: field("cpu family").and_then(|v| v.parse().ok()),
            cpu_model: field("model").and_then(|v| v.parse().ok()),
            cores: thread::available_parallelism().map_or(1, usize::from),
            virtual_machine: flags.split_whitespace().any(|flag| flag == "hypervisor"),
            cache_bytes: caches(),
            memory_bytes: read("/proc/meminfo")
                .and_then(|info| value_of(&info, "MemTotal").and_then(parse_size)),
            kernel: read("/proc/sys/kernel/osrelease"),
            isa_features,
        }
    }

    /// The size of a cache by name, or a usual one when the machine does not say.
    #[must_use]
    pub fn cache(&self, name: &str, usual_bytes: usize) -> usize {
        self.cache_bytes.get(name).copied().unwrap_or(usual_bytes)
    }
}

/// The caches of the first core, from sysfs.
fn caches() -> BTreeMap<String, usize> {
    let mut caches = BTreeMap::new();
    for index in 0.. {
        let file = |name: &str| {
            read(&format!(
                "/sys/devices/system/cpu/cpu0/cache/index{index}/{name}"
            ))
        };
        let (Some(level), Some(kind), Some(size)) = (file("level"), file("type"), file("size"))
        else {
            return caches;
        };
        let suffix = match kind.as_str() {
            "Data" => "d",
            "Instruction" => "i",
            _ => "",
        };
        if let Some(bytes) = parse_size(&size).and_then(|bytes| usize::try_from(bytes).ok()) {
            caches.insert(format!("L{level}{suffix}"), bytes);
        }
    }
    caches
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(path)
        .ok()
        .map(|text| text.trim().to_owned())
}

/// The first `name : value` line of a file in /proc.
fn value_of<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    lines
        .map(|(key, value)| (key.trim(), value.trim()))
        .find(|(key, _)| *key == name)
        .map(|(_, v)| v)
}

/// `48K`, `32 MB`, `24000000 kB`: sizes as /proc and /sys write them, in powers of 1024.
fn parse_size(text: &str) -> Option<u64> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let number: u64 = text[..digits].parse().ok()?;
    let unit = match text[digits..].trim_start().chars().next() {
        None | Some('B') => 1,
        Some('k' | 'K') => 1 << 10,
        Some('m' | 'M') => 1 << 20,
        Some('g' | 'G') => 1 << 30,
        Some(_) => return None,
    };
    number.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_as_the_kernel_writes_them() {
        assert_eq!(parse_size("48K"), Some(48 << 10));
        assert_eq!(parse_size("24000000 kB"), Some(24_000_000 << 10));
        assert_eq!(parse_size("2M"), Some(2 << 20));
        assert_eq!(parse_size("64"), Some(64));
        assert_eq!(parse_size("x"), None);
        assert_eq!(parse_size("64 furlongs"), None);
    }

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let cpuinfo = "model\t\t: 2\nmodel name\t: A CPU: the fast one\n";
        assert_eq!(value_of(cpuinfo, "model name"), Some("A CPU: the fast one"));
        assert_eq!(value_of(cpuinfo, "model"), Some("2"));
        assert_eq!(value_of(cpuinfo, "flags"), None);
    }
}
