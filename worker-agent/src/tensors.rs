//! Tensors in safetensors files, and how they become the job's two messages.
//!
//! Float tensors (F32, F16, BF16) in ascending byte order of their names, widened exactly, are kept
//! as f32; integer tensors (I32, I16, I8) in the same order as i32. Which of them travel together, and
//! as what, `Vector` decides. Going back, every tensor is
//! narrowed to its own type, to nearest, ties to even; a NaN stays one, quiet, with its sign and
//! the upper bits of its payload. `reference/check.py` says the same in numpy.

use half::{bf16, f16};
use safetensors::tensor::{Dtype as FileDtype, View};
use safetensors::{SafeTensorError, SafeTensors};
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use tally_wire::Element;
use tally_wire::control::Shape;
use thiserror::Error;

/// Why tensors cannot be read or written.
#[derive(Debug, Error)]
pub enum TensorError {
    /// The file system's reason.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// No safetensors file, or a damaged one.
    #[error("{}: not a usable safetensors file: {source}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// Why.
        source: SafeTensorError,
    },
    /// A type that cannot be summed.
    #[error(
        "{}: tensor {tensor:?} is {dtype:?}, which Tally does not sum (it sums F32, F16, BF16, I32, I16 and I8)",
        path.display()
    )]
    Dtype {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its type.
        dtype: FileDtype,
    },
}

/// Types of elements that can be summed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Dtype {
    /// IEEE single.
    F32,
    /// IEEE half.
    F16,
    /// The upper half of a single.
    Bf16,
    /// Two's complement.
    I32,
    /// Two's complement.
    I16,
    /// Two's complement.
    I8,
}

impl Dtype {
    const fn of(dtype: FileDtype) -> Option<Self> {
        match dtype {
            FileDtype::F32 => Some(Self::F32),
            FileDtype::F16 => Some(Self::F16),
            FileDtype::BF16 => Some(Self::Bf16),
            FileDtype::I32 => Some(Self::I32),
            FileDtype::I16 => Some(Self::I16),
            FileDtype::I8 => Some(Self::I8),
            _ => None,
        }
    }

    const fn file(self) -> FileDtype {
        match self {
            Self::F32 => FileDtype::F32,
            Self::F16 => FileDtype::F16,
            Self::Bf16 => FileDtype::BF16,
            Self::I32 => FileDtype::I32,
            Self::I16 => FileDtype::I16,
            Self::I8 => FileDtype::I8,
        }
    }

    /// The name that safetensors files have for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::Bf16 => "BF16",
            Self::I32 => "I32",
            Self::I16 => "I16",
            Self::I8 => "I8",
        }
    }

    /// Whether its tensors are kept as i32, and not as f32.
    #[must_use]
    pub const fn is_int(self) -> bool {
        matches!(self, Self::I32 | Self::I16 | Self::I8)
    }

    /// The type of the wire that has the same values.
    #[must_use]
    pub const fn element(self) -> Element {
        match self {
            Self::F32 => Element::F32,
            Self::F16 => Element::F16,
            Self::Bf16 => Element::Bf16,
            Self::I32 => Element::I32,
            Self::I16 => Element::I16,
            Self::I8 => Element::I8,
        }
    }

    /// Bytes of one element.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 | Self::I32 => 4,
            Self::F16 | Self::Bf16 | Self::I16 => 2,
            Self::I8 => 1,
        }
    }
}

/// One tensor of a [`Layout`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Its name.
    pub name: String,
    /// Its type.
    pub dtype: Dtype,
    /// Its dimensions; none for a scalar.
    pub shape: Vec<usize>,
    /// Where it begins in the f32 or i32 that are kept, in elements.
    pub start: usize,
    /// How many elements it has.
    pub elements: usize,
}

impl Tensor {
    /// Whether some of its elements are in that part of what is kept.
    fn overlaps(&self, kept: &std::ops::Range<usize>) -> bool {
        self.start < kept.end && self.start + self.elements > kept.start
    }
}

/// Which tensors there are and where they are in the messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// In ascending byte order of their names.
    pub tensors: Vec<Tensor>,
    /// Elements of float tensors.
    pub floats: usize,
    /// Elements of integer tensors.
    pub ints: usize,
    /// What kind of program the file is for (`pt` for PyTorch), which some ask for. Other remarks
    /// of the file are about one worker's tensors, and not passed on.
    format: Option<String>,
}

impl Layout {
    fn push(&mut self, name: String, dtype: Dtype, shape: Vec<usize>) {
        let elements = shape.iter().product();
        let message = if dtype.is_int() {
            &mut self.ints
        } else {
            &mut self.floats
        };
        let start = *message;
        *message += elements;
        self.tensors.push(Tensor {
            name,
            dtype,
            shape,
            start,
            elements,
        });
    }

    /// Bytes of all tensors in their own types.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.tensors
            .iter()
            .map(|t| t.elements * t.dtype.bytes())
            .sum()
    }

    /// Integer tensors with elements in that part of the ints.
    pub fn in_ints(&self, range: std::ops::Range<usize>) -> impl Iterator<Item = &Tensor> {
        let ints = self.tensors.iter().filter(|t| t.dtype.is_int());
        ints.filter(move |t| t.overlaps(&range))
    }

    /// Float tensors with elements in that part of the floats.
    pub fn in_floats(&self, range: std::ops::Range<usize>) -> impl Iterator<Item = &Tensor> {
        let floats = self.tensors.iter().filter(|t| !t.dtype.is_int());
        floats.filter(move |t| t.overlaps(&range))
    }

    /// What all workers of a job must agree on, for JOIN: names, types and shapes of the tensors,
    /// `arithmetic`, and bytes in a payload. Numbers are little-endian u64, texts go behind their
    /// length.
    #[must_use]
    pub fn digest(&self, arithmetic: &str, payload_bytes: u32) -> Shape {
        fn number(hash: &mut Sha256, n: usize) {
            hash.update((n as u64).to_le_bytes());
        }
        fn text(hash: &mut Sha256, s: &str) {
            number(hash, s.len());
            hash.update(s);
        }
        let mut hash = Sha256::new();
        text(&mut hash, "tally shape 1");
        text(&mut hash, arithmetic);
        number(&mut hash, payload_bytes as usize);
        for t in &self.tensors {
            text(&mut hash, &t.name);
            text(&mut hash, t.dtype.name());
            number(&mut hash, t.shape.len());
            t.shape.iter().for_each(|&d| number(&mut hash, d));
        }
        hash.finalize().into()
    }
}

impl std::fmt::Display for Dtype {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Tensors, as f32 and as i32.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tensors {
    /// What they are.
    pub layout: Layout,
    /// Of the float tensors, one after the other.
    pub floats: Vec<f32>,
    /// Of the integer tensors, one after the other.
    pub ints: Vec<i32>,
}

impl Tensors {
    /// Reads a safetensors file.
    ///
    /// # Errors
    /// If it cannot be read, is no safetensors file, or has a tensor of another type than F32, F16,
    /// BF16, I32, I16 or I8.
    pub fn read(path: &Path) -> Result<Self, TensorError> {
        let bytes = fs::read(path).map_err(|source| TensorError::Io {
            path: path.to_owned(),
            source,
        })?;
        Self::parse(path, &bytes)
    }

    fn parse(path: &Path, bytes: &[u8]) -> Result<Self, TensorError> {
        let format = |source| TensorError::Format {
            path: path.to_owned(),
            source,
        };
        let file = SafeTensors::deserialize(bytes).map_err(format)?;
        let (_, header) = SafeTensors::read_metadata(bytes).map_err(format)?;
        let mut views: Vec<_> = file.iter().collect();
        views.sort_unstable_by(|a, b| a.0.as_bytes().cmp(b.0.as_bytes()));
        let mut layout = Layout {
            format: header
                .metadata()
                .as_ref()
                .and_then(|m| m.get("format").cloned()),
            ..Layout::default()
        };
        for (name, view) in &views {
            let dtype = Dtype::of(view.dtype()).ok_or_else(|| TensorError::Dtype {
                path: path.to_owned(),
                tensor: (*name).to_owned(),
                dtype: view.dtype(),
            })?;
            layout.push((*name).to_owned(), dtype, view.shape().to_vec());
        }
        let mut floats = Vec::with_capacity(layout.floats);
        let mut ints = Vec::with_capacity(layout.ints);
        for (tensor, (_, view)) in layout.tensors.iter().zip(&views) {
            let data = view.data();
            match tensor.dtype {
                Dtype::F32 => floats.extend(words(data).map(f32::from_le_bytes)),
                Dtype::F16 => floats.extend(words(data).map(|w| f16::from_le_bytes(w).to_f32())),
                Dtype::Bf16 => floats.extend(words(data).map(|w| bf16::from_le_bytes(w).to_f32())),
                Dtype::I32 => ints.extend(words(data).map(i32::from_le_bytes)),
                Dtype::I16 => ints.extend(words(data).map(|w| i32::from(i16::from_le_bytes(w)))),
                Dtype::I8 => ints.extend(words(data).map(|w| i32::from(i8::from_le_bytes(w)))),
            }
        }
        debug_assert_eq!((floats.len(), ints.len()), (layout.floats, layout.ints));
        Ok(Self {
            layout,
            floats,
            ints,
        })
    }

    /// One tensor called `gradient` with numbers that follow from seed and rank, so that large
    /// runs need no files. `reference/check.py` makes the same. No sum of up to 64 saturates.
    #[must_use]
    pub fn synthetic(seed: u64, rank: u8, elements: usize, dtype: Dtype) -> Self {
        let mut layout = Layout::default();
        layout.push("gradient".into(), dtype, vec![elements]);
        let start = seed
            .wrapping_mul(GOLDEN)
            .wrapping_add(u64::from(rank) << 40);
        let words = (0..elements as u64).map(|i| splitmix64(start.wrapping_add(i)));
        let float = |x: u64| {
            let m = (x >> 40) as i32 - (1 << 23);
            let exponent = 127 - 23 - (x & 0xf) as u32;
            let value = m as f32 * f32::from_bits(exponent << 23);
            match dtype {
                Dtype::F16 => f16::from_f32(value).to_f32(),
                Dtype::Bf16 => bf16::from_f32(value).to_f32(),
                _ => value,
            }
        };
        // The upper bits of the same numbers.
        let shift = match dtype {
            Dtype::I16 => 14,
            Dtype::I8 => 22,
            _ => 0,
        };
        let int = |x: u64| ((x >> 40) as i32 - (1 << 23)) >> shift;
        let (floats, ints) = if dtype.is_int() {
            (Vec::new(), words.map(int).collect())
        } else {
            (words.map(float).collect(), Vec::new())
        };
        Self {
            layout,
            floats,
            ints,
        }
    }

    /// Turns the sums of `workers` workers into means: floats are divided in f32, integers are
    /// truncated toward zero.
    pub fn divide_by(&mut self, workers: u8) {
        // With one worker nothing is divided, so that a NaN keeps its bits.
        if workers > 1 {
            for v in &mut self.floats {
                *v = if v.is_nan() {
                    f32::from_bits(tally_kernels::CANONICAL_NAN)
                } else {
                    *v / f32::from(workers)
                };
            }
            self.ints.iter_mut().for_each(|v| *v /= i32::from(workers));
        }
    }

    /// Writes a safetensors file, whole or not at all: to a new file in the same folder, which
    /// takes the name of `path` once it is safely on the disk.
    ///
    /// # Errors
    /// If it cannot be written; then what was at `path` before is still there.
    pub fn write(&self, path: &Path) -> Result<(), TensorError> {
        let io = |source| TensorError::Io {
            path: path.to_owned(),
            source,
        };
        let name = path.file_name().ok_or_else(|| {
            io(io::Error::new(
                io::ErrorKind::InvalidInput,
                "not the name of a file",
            ))
        })?;
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let mut temporary = std::ffi::OsString::from(".");
        temporary.push(name);
        temporary.push(format!(".{}.tmp", std::process::id()));
        let temporary = folder.join(temporary);
        let written = self.write_to(&temporary).and_then(|()| {
            fs::File::open(&temporary)
                .and_then(|f| f.sync_all())
                .and_then(|()| fs::rename(&temporary, path))
                .and_then(|()| fs::File::open(folder)?.sync_all())
                .map_err(io)
        });
        if written.is_err() {
            // It may not be there; the first error is the one to tell.
            let _ = fs::remove_file(&temporary);
        }
        written
    }

    fn write_to(&self, path: &Path) -> Result<(), TensorError> {
        let view = |tensor| {
            let tensor: &Tensor = tensor;
            let view = Narrowed { all: self, tensor };
            (tensor.name.as_str(), view)
        };
        let views = self.layout.tensors.iter().map(view);
        let format = self.layout.format.clone();
        let metadata = format.map(|f| HashMap::from([("format".to_owned(), f)]));
        safetensors::serialize_to_file(views, metadata, path).map_err(|error| match error {
            SafeTensorError::IoError(source) => TensorError::Io {
                path: path.to_owned(),
                source,
            },
            source => TensorError::Format {
                path: path.to_owned(),
                source,
            },
        })
    }
}

/// A tensor of the output in its own type.
struct Narrowed<'a> {
    all: &'a Tensors,
    tensor: &'a Tensor,
}

impl View for Narrowed<'_> {
    fn dtype(&self) -> FileDtype {
        self.tensor.dtype.file()
    }

    fn shape(&self) -> &[usize] {
        &self.tensor.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        let range = self.tensor.start..self.tensor.start + self.tensor.elements;
        let floats = || self.all.floats[range.clone()].iter();
        let ints = || self.all.ints[range.clone()].iter();
        let mut bytes = Vec::with_capacity(self.data_len());
        match self.tensor.dtype {
            Dtype::F32 => floats().for_each(|v| bytes.extend(v.to_le_bytes())),
            Dtype::F16 => floats().for_each(|&v| bytes.extend(f16::from_f32(v).to_le_bytes())),
            Dtype::Bf16 => floats().for_each(|&v| bytes.extend(bf16::from_f32(v).to_le_bytes())),
            Dtype::I32 => ints().for_each(|v| bytes.extend(v.to_le_bytes())),
            // Sums that do not fit have failed the job.
            Dtype::I16 => ints().for_each(|&v| bytes.extend((v as i16).to_le_bytes())),
            Dtype::I8 => ints().for_each(|&v| bytes.push(v as u8)),
        }
        bytes.into()
    }

    fn data_len(&self) -> usize {
        self.tensor.elements * self.tensor.dtype.bytes()
    }
}

fn words<const N: usize>(bytes: &[u8]) -> impl Iterator<Item = [u8; N]> {
    bytes.as_chunks().0.iter().copied()
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

const fn splitmix64(z: u64) -> u64 {
    let z = z.wrapping_add(GOLDEN);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests;
