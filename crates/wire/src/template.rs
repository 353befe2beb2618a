//! Comparison of a frame's first 64 bytes with those of an earlier frame, under a mask.

use crate::field::Field;

/// Number of bytes compared.
pub(crate) const BYTES: usize = 64;

/// The bytes as words, in host byte order.
pub(crate) type Words = [u64; BYTES / 8];

/// The bytes of the earlier frame, and the bits of them that must be equal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Template {
    words: Words,
    /// In memory, because the compiler compares word by word, without vectors, if it knows the
    /// value.
    mask: Words,
}

impl Template {
    #[inline]
    pub(crate) const fn new(bytes: &[u8; BYTES], mask: Words) -> Self {
        Self {
            words: words(bytes),
            mask,
        }
    }

    /// Whether all bits under the mask are equal.
    #[inline]
    pub(crate) fn matches(&self, bytes: &[u8; BYTES]) -> bool {
        let differences = words(bytes)
            .iter()
            .zip(self.words)
            .zip(self.mask)
            .fold(0, |other, ((a, b), mask)| other | (a ^ b) & mask);
        differences == 0
    }
}

/// Leaves these bytes of a mask out of the comparison.
pub(crate) const fn blank(mask: &mut [u8; BYTES], field: Field) {
    let mut at = field.start;
    while at < field.end {
        mask[at] = 0;
        at += 1;
    }
}

#[inline]
pub(crate) const fn words(bytes: &[u8; BYTES]) -> Words {
    let mut words = [0; BYTES / 8];
    let (chunks, _) = bytes.as_chunks::<8>();
    let mut i = 0;
    while i < words.len() {
        words[i] = u64::from_ne_bytes(chunks[i]);
        i += 1;
    }
    words
}
