//! The all-reduces of the demonstration: recorded gradients, then synthetic tensors.

use super::Args;
use anyhow::{Result, ensure};
use std::path::{Path, PathBuf};

/// The sets of real gradients, with what they are.
const REAL: [(&str, &str); 4] = [
    ("step0", "digits, step 0"),
    ("step40", "digits, step 40"),
    ("step399", "digits, step 399"),
    ("mixed", "digits, bf16 f16 f32 i32"),
];
/// Workers for which real gradients are recorded; further ranks take them again from the first.
const REAL_WORKERS: u8 = 8;

/// One all-reduce.
pub struct Workload {
    pub name: String,
    pub arithmetic: &'static str,
    pub data: Data,
    /// Whether the card is killed in the middle.
    pub kills_card: bool,
}

pub enum Data {
    Real(PathBuf),
    /// So many elements, of this type.
    Synthetic(u64, &'static str),
}

impl Workload {
    /// Elements of a synthetic tensor, and bytes of each on the wire; 0 and 0 of real gradients.
    pub fn size(&self) -> (u64, u64) {
        match self.data {
            Data::Real(_) => (0, 0),
            Data::Synthetic(elements, "f16") => (elements, 2),
            Data::Synthetic(elements, "i8") => (elements, 1),
            Data::Synthetic(elements, _) => (elements, 4),
        }
    }
}

pub fn workloads(args: &Args) -> Result<Vec<Workload>> {
    let mut workloads = Vec::new();
    for (folder, name) in REAL {
        let digits = args.gradients.join("digits").join(folder);
        let path = if digits.exists() {
            digits
        } else {
            args.gradients.join(folder)
        };
        ensure!(
            path.exists(),
            "{}: no recorded gradients (run from the project's folder, or give --gradients)",
            path.display()
        );
        workloads.push(Workload {
            name: name.into(),
            arithmetic: "fixed",
            data: Data::Real(path.clone()),
            kills_card: false,
        });
        if folder == "mixed" {
            workloads.push(Workload {
                name: name.into(),
                arithmetic: "own",
                data: Data::Real(path.clone()),
                kills_card: false,
            });
        }
        if folder == "step40" {
            workloads.push(Workload {
                name: name.into(),
                arithmetic: "native",
                data: Data::Real(path),
                kills_card: false,
            });
        }
    }
    if args.elements() > 0 {
        for arithmetic in ["fixed", "native"] {
            workloads.push(Workload {
                name: format!("synthetic, {} elements", args.elements()),
                arithmetic,
                data: Data::Synthetic(args.elements(), "f32"),
                kills_card: false,
            });
        }
        for element in ["f16", "i8"] {
            workloads.push(Workload {
                name: format!("synthetic, {} elements {element}", args.elements()),
                arithmetic: "own",
                data: Data::Synthetic(args.elements(), element),
                kills_card: false,
            });
        }
    }
    if args.card {
        workloads.push(Workload {
            name: format!("the same, {} elements", args.elements()),
            arithmetic: "fixed",
            data: Data::Synthetic(args.elements(), "f32"),
            kills_card: true,
        });
    }
    Ok(workloads)
}

pub fn input(folder: &Path, rank: u16) -> PathBuf {
    folder.join(format!(
        "rank{}.safetensors",
        rank % u16::from(REAL_WORKERS)
    ))
}
