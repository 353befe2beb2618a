use super::*;
use proptest::prelude::*;
use std::vec;
use std::vec::Vec;

fn data() -> Header {
    Header {
        kind: Kind::Data,
        flags: Flags::RESEND,
        priority: 200,
        element: Element::I32,
        job: JobId(0x0102),
        epoch: Epoch(0x0304),
        fragment: FragmentId(0x0506_0708),
        rank: Rank(9),
        units: 1,
        bitmap: 1 << 9,
        tag: AuthTag::NONE,
    }
}

const DATA_BYTES: [u8; HEADER_BYTES] = [
    0x25, 0x01, 200, 0x01, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08, 9, 1, 0, 0, 0, 0, 0, 0,
    0x02, 0x00,
];

fn datagram(header: &[u8], payload: usize) -> Vec<u8> {
    let mut d = header.to_vec();
    d.resize(header.len() + payload, 0xa5);
    d
}

#[test]
fn emits_the_documented_bytes_and_no_more() {
    let mut buf = [0xa5; 32];
    data().emit(&mut buf);
    assert_eq!(buf[..HEADER_BYTES], DATA_BYTES);
    assert_eq!(buf[HEADER_BYTES..], [0xa5; 10]);
}

#[test]
fn parses_the_documented_bytes() {
    assert_eq!(Header::parse(&datagram(&DATA_BYTES, 64)), Ok(data()));
}

#[test]
fn truncated_at_every_length_is_refused() {
    let whole = datagram(&DATA_BYTES, 64);
    for len in 0..whole.len() {
        let want = if len < HEADER_BYTES {
            HeaderError::Truncated
        } else {
            HeaderError::Length
        };
        assert_eq!(Header::parse(&whole[..len]), Err(want), "length {len}");
    }
    assert_eq!(
        Header::parse(&datagram(&DATA_BYTES, 65)),
        Err(HeaderError::Length)
    );
}

#[test]
#[should_panic(expected = "shorter than the Tally header")]
fn emit_into_a_short_buffer_panics() {
    data().emit(&mut [0; HEADER_BYTES - 1]);
}

#[test]
fn each_requirement_has_its_own_error() {
    let with = |at: usize, value: u8| {
        let mut b = DATA_BYTES;
        b[at] = value;
        Header::parse(&datagram(&b, 64))
    };
    assert_eq!(with(0, 0x15), Err(HeaderError::Version));
    assert_eq!(with(0, 0x35), Err(HeaderError::Version));
    assert_eq!(with(0, 0x20), Err(HeaderError::Kind));
    assert_eq!(with(0, 0x2c), Err(HeaderError::Kind));
    for bit in [2, 3, 6, 7] {
        assert_eq!(
            with(1, 1 << bit),
            Err(HeaderError::Reserved),
            "flag bit {bit}"
        );
    }
    for bit in 4..8 {
        assert_eq!(
            with(3, 1 | 1 << bit),
            Err(HeaderError::Reserved),
            "element bit {bit}"
        );
    }
    assert_eq!(with(3, 0), Err(HeaderError::Element));
    assert_eq!(with(3, 8), Err(HeaderError::Element));
    assert_eq!(with(12, 64), Err(HeaderError::Rank));
    assert_eq!(with(12, 254), Err(HeaderError::Rank));
    assert_eq!(with(13, 0), Err(HeaderError::Length));
    assert_eq!(with(13, 2), Err(HeaderError::Length));
    assert_eq!(with(13, 129), Err(HeaderError::Length));
    assert_eq!(with(21, 1), Err(HeaderError::Bitmap));
}

#[test]
fn an_f32_partial_is_a_fold_or_a_single_contribution() {
    let partial = |bitmap| Header {
        kind: Kind::Partial,
        flags: Flags::NONE,
        element: Element::F32,
        rank: Rank::SWITCH,
        bitmap,
        ..data()
    };
    for good in [0b1, 0b111, 0b100, u64::MAX, 1 << 63] {
        assert_eq!(partial(good).check(), Ok(()), "{good:b}");
    }
    for bad in [0, 0b101, 0b110] {
        assert_eq!(partial(bad).check(), Err(HeaderError::Bitmap), "{bad:b}");
    }
    let i32_partial = Header {
        element: Element::I32,
        ..partial(0b101)
    };
    assert_eq!(i32_partial.check(), Ok(()));
}

#[test]
fn narrow_partials_are_single_contributions_or_whole() {
    for element in Element::ALL {
        let partial = |bitmap| Header {
            kind: Kind::Partial,
            flags: Flags::NONE,
            element,
            rank: Rank::SWITCH,
            bitmap,
            ..data()
        };
        assert_eq!(partial(0b100).check(), Ok(()));
        // All of them, for all that a header knows.
        assert_eq!(partial(0b111).check(), Ok(()));
        assert_eq!(partial(0b101).check().is_err(), element.is_ordered());
        let mut bytes = datagram(&DATA_BYTES, 64);
        bytes[3] = element as u8;
        let parsed = Header::parse(&bytes).map(|h| h.element);
        assert_eq!(parsed, Ok(element));
    }
    let narrow = Element::ALL.iter().filter(|e| e.is_narrow());
    assert_eq!(narrow.map(|e| e.bytes()).collect::<Vec<_>>(), [2, 2, 2, 1]);
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic_and_reemit_themselves(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(h) = Header::parse(&bytes) {
            let mut out = [0xa5; HEADER_BYTES];
            h.emit(&mut out);
            prop_assert_eq!(&out[..], &bytes[..HEADER_BYTES]);
        }
    }

    #[test]
    fn plausible_bytes_reemit_themselves(
        first in 0x20u8..0x2d, flags in 0u8..16, element in 0u8..9,
        rank in prop_oneof![0u8..64, 250u8..=255], units in 0u8..4, bitmap in any::<u64>(), own in any::<bool>(),
    ) {
        let mut b = vec![first, flags, 7, element, 0, 1, 0, 2, 0, 0, 0, 3, rank, units];
        let bitmap = if own { Rank(rank).bit() } else { bitmap };
        b.extend_from_slice(&bitmap.to_be_bytes());
        b.resize(HEADER_BYTES + usize::from(units) * 64, 0);
        if let Ok(h) = Header::parse(&b) {
            prop_assert_eq!(h.check(), Ok(()));
            let mut out = [0xa5; HEADER_BYTES];
            h.emit(&mut out);
            prop_assert_eq!(&out[..], &b[..HEADER_BYTES]);
        }
    }
}
