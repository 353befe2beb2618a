//! Bytes as hexadecimal digits.

use std::fmt::{self, Display, Formatter};

/// Bytes that are shown as digits.
pub(crate) struct Hex<'a>(pub(crate) &'a [u8]);

impl Display for Hex<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The bytes that `text` shows; `None` if it shows none.
pub(crate) fn parse(text: &str) -> Option<Vec<u8>> {
    let pairs = text.as_bytes().chunks(2);
    let digit = |d: u8| char::from(d).to_digit(16);
    let byte = |pair: &[u8]| match *pair {
        [high, low] => Some((digit(high)? << 4 | digit(low)?) as u8),
        _ => None,
    };
    pairs.map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_two_digits_each() {
        assert_eq!(Hex(&[0, 0x5a, 0xff]).to_string(), "005aff");
        assert_eq!(parse("005aFF"), Some(vec![0, 0x5a, 0xff]));
        for bad in ["0", "005", "0g", "+1", "é"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
