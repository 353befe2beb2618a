//! Tensors in safetensors files.
//!
//! A tensor is its bytes, in the host's order, which a session sums in place. Tensors are in
//! ascending byte order of their names, in which all ranks sum them. `reference/check.py` reads the
//! same files in numpy.

use half::{bf16, f16};
use safetensors::tensor::{Dtype as FileDtype, View};
use safetensors::{SafeTensorError, SafeTensors};
use std::borrow::Cow;
use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use tally_session::Dtype;
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
    /// A type that a ring of RoCEv2 hosts does not sum.
    #[error("tensor {tensor:?} is {dtype:?}; a ring sums F32, F16, BF16 and I32")]
    Ring {
        /// The tensor.
        tensor: String,
        /// Its type.
        dtype: Dtype,
    },
}

const fn of_file(dtype: FileDtype) -> Option<Dtype> {
    match dtype {
        FileDtype::F32 => Some(Dtype::F32),
        FileDtype::F16 => Some(Dtype::F16),
        FileDtype::BF16 => Some(Dtype::Bf16),
        FileDtype::I32 => Some(Dtype::I32),
        FileDtype::I16 => Some(Dtype::I16),
        FileDtype::I8 => Some(Dtype::I8),
        _ => None,
    }
}

const fn in_file(dtype: Dtype) -> FileDtype {
    match dtype {
        Dtype::F32 => FileDtype::F32,
        Dtype::F16 => FileDtype::F16,
        Dtype::Bf16 => FileDtype::BF16,
        Dtype::I32 => FileDtype::I32,
        Dtype::I16 => FileDtype::I16,
        Dtype::I8 => FileDtype::I8,
    }
}

/// One tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Its name.
    pub name: String,
    /// Its type.
    pub dtype: Dtype,
    /// Its dimensions; none for a scalar.
    pub shape: Vec<usize>,
    /// Its elements, in the host's byte order.
    pub bytes: Vec<u8>,
}

impl Tensor {
    /// Number of its elements.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.bytes.len() / self.dtype.bytes()
    }
}

/// The tensors of one file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tensors {
    /// In ascending byte order of their names.
    pub tensors: Vec<Tensor>,
    /// What kind of program the file is for (`pt` for PyTorch), which some ask for. Other remarks
    /// of the file are about one worker's tensors, and not passed on.
    format: Option<String>,
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
        let tensor = |(name, view): (&str, safetensors::tensor::TensorView<'_>)| {
            let dtype = of_file(view.dtype()).ok_or_else(|| TensorError::Dtype {
                path: path.to_owned(),
                tensor: name.to_owned(),
                dtype: view.dtype(),
            })?;
            let mut bytes = view.data().to_vec();
            turn_round(dtype, &mut bytes);
            Ok(Tensor {
                name: name.to_owned(),
                dtype,
                shape: view.shape().to_vec(),
                bytes,
            })
        };
        Ok(Self {
            tensors: views.into_iter().map(tensor).collect::<Result<_, _>>()?,
            format: header
                .metadata()
                .as_ref()
                .and_then(|m| m.get("format").cloned()),
        })
    }

    /// One tensor called `gradient` with numbers that follow from seed and rank, so that large
    /// runs need no files. `reference/check.py` makes the same. No sum of up to 64 saturates.
    #[must_use]
    pub fn synthetic(seed: u64, rank: u16, elements: usize, dtype: Dtype) -> Self {
        let start = seed
            .wrapping_mul(GOLDEN)
            .wrapping_add(u64::from(rank) << 40);
        let words = (0..elements as u64).map(|i| splitmix64(start.wrapping_add(i)));
        let float = |x: u64| {
            let m = (x >> 40) as i32 - (1 << 23);
            let exponent = 127 - 23 - (x & 0xf) as u32;
            m as f32 * f32::from_bits(exponent << 23)
        };
        let int = |x: u64| (x >> 40) as i32 - (1 << 23);
        let mut bytes = Vec::with_capacity(elements * dtype.bytes());
        match dtype {
            Dtype::F32 => words.for_each(|x| bytes.extend(float(x).to_ne_bytes())),
            Dtype::F16 => words.for_each(|x| bytes.extend(f16::from_f32(float(x)).to_ne_bytes())),
            Dtype::Bf16 => words.for_each(|x| bytes.extend(bf16::from_f32(float(x)).to_ne_bytes())),
            Dtype::I32 => words.for_each(|x| bytes.extend(int(x).to_ne_bytes())),
            // The upper bits of the same numbers.
            Dtype::I16 => words.for_each(|x| bytes.extend(((int(x) >> 14) as i16).to_ne_bytes())),
            Dtype::I8 => words.for_each(|x| bytes.push((int(x) >> 22) as u8)),
        }
        let tensor = Tensor {
            name: "gradient".into(),
            dtype,
            shape: vec![elements],
            bytes,
        };
        Self {
            tensors: vec![tensor],
            format: None,
        }
    }

    /// Bytes of all tensors.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.tensors.iter().map(|t| t.bytes.len()).sum()
    }

    /// Elements of all tensors.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.tensors.iter().map(Tensor::elements).sum()
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
        let views = self.tensors.iter().map(|t| (t.name.as_str(), t));
        let format = self.format.clone();
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

impl View for &Tensor {
    fn dtype(&self) -> FileDtype {
        in_file(self.dtype)
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        if cfg!(target_endian = "little") {
            return Cow::Borrowed(&self.bytes);
        }
        let mut bytes = self.bytes.clone();
        turn_round(self.dtype, &mut bytes);
        bytes.into()
    }

    fn data_len(&self) -> usize {
        self.bytes.len()
    }
}

/// From the file's byte order, which is little-endian, to the host's, or back.
fn turn_round(dtype: Dtype, bytes: &mut [u8]) {
    if cfg!(target_endian = "big") {
        for element in bytes.chunks_exact_mut(dtype.bytes()) {
            element.reverse();
        }
    }
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
