use super::*;
use std::path::Path;

const PAYLOAD: usize = 64;

/// The real gradients of mixed precision: f32, f16, bf16 and i32 tensors, one among the other.
fn mixed() -> Tensors {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("gradients/mixed/rank0.safetensors");
    Tensors::read(&path).expect("in the repository")
}

/// Every contribution of a round comes back as its own result.
fn echo(input: &Tensors, arithmetic: Arithmetic) -> (Tensors, Vec<Element>) {
    let mut vector = Vector::new(input, arithmetic, 1, 4, PAYLOAD);
    let mut elements = Vec::new();
    for seq in 0..vector.fragments() {
        let mut payload = [0xa5; PAYLOAD];
        let Contribution::Ready(element) = vector.contribute(seq, &mut payload) else {
            panic!("fragment {seq} is not ready");
        };
        let delivery = Delivery {
            latency: std::time::Duration::ZERO,
            from_ps: false,
        };
        vector.result(seq, element, &payload, delivery);
        elements.push(element);
    }
    elements.dedup();
    (vector.output, elements)
}

#[test]
fn what_goes_out_comes_back_whatever_it_travels_as() {
    let input = mixed();
    let (output, elements) = echo(&input, Arithmetic::Native);
    assert!(output == input);
    assert_eq!(elements, [Element::F32, Element::I32]);
    let (output, elements) = echo(&input, Arithmetic::Own);
    assert!(output == input);
    let own = [Element::F32, Element::F16, Element::Bf16, Element::I32];
    assert_eq!(elements, own);
}

#[test]
fn integers_travel_in_their_own_type() {
    for (dtype, element) in [
        (Dtype::I32, Element::I32),
        (Dtype::I16, Element::I16),
        (Dtype::I8, Element::I8),
    ] {
        for elements in [0, 1, 15, 16, 17, 200] {
            let input = Tensors::synthetic(1, 2, elements, dtype);
            for arithmetic in [Arithmetic::Fixed, Arithmetic::Native, Arithmetic::Own] {
                let (output, elements) = echo(&input, arithmetic);
                assert!(output == input, "{dtype:?} {arithmetic:?}");
                assert!(elements.iter().all(|e| *e == element));
            }
        }
    }
}

#[test]
fn narrow_messages_have_as_many_fragments_as_their_bytes_fill() {
    let fragments = |arithmetic| Vector::new(&mixed(), arithmetic, 1, 4, PAYLOAD).fragments();
    let layout = mixed().layout;
    let bytes = |dtype| {
        let of = layout.tensors.iter().filter(|t| t.dtype == dtype);
        of.map(|t| t.elements * dtype.bytes()).sum::<usize>()
    };
    let own = [Dtype::F32, Dtype::F16, Dtype::Bf16, Dtype::I32].map(|d| bytes(d).div_ceil(64));
    assert_eq!(fragments(Arithmetic::Own), own.iter().sum::<usize>() as u64);
    assert!(fragments(Arithmetic::Own) < fragments(Arithmetic::Native));
}

/// A number that is another one for every result.
fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x ^ (x >> 29)
}

/// A payload of any bits at all, infinities and signalling NaNs of every type of float among them, which is
/// zero where the fragment has no elements.
fn any_payload(vector: &mut Vector, seq: u64) -> (Element, [u8; PAYLOAD]) {
    let mut own = [0; PAYLOAD];
    let Contribution::Ready(element) = vector.contribute(seq, &mut own) else {
        panic!("fragment {seq} is not ready");
    };
    let elements = match vector.at(seq) {
        Fragment::Plain { message, fragment } => {
            let pieces = vector.messages[message].0.pieces(fragment, PAYLOAD);
            pieces.map(|piece| piece.len()).sum::<usize>()
        }
        _ => PAYLOAD / 4,
    };
    let mut payload = [0; PAYLOAD];
    let special = [0x7fc1_8001_u32, 0xff80_0001, 0xfc01_7e01, 0xff81_fc02];
    for (at, word) in payload.as_chunks_mut().0.iter_mut().enumerate() {
        let random = mix(seq << 8 | at as u64);
        let special = special[random as usize % 4];
        *word = if random >> 63 == 0 {
            special
        } else {
            (random >> 20) as u32
        }
        .to_le_bytes();
    }
    payload[(elements * element.bytes()).min(PAYLOAD)..].fill(0);
    if element == Element::Scale {
        payload.fill(127);
    }
    (element, payload)
}

/// Rounds in which results come out of order, as far as a window lets them. After each, every result that
/// someone may ask for (W-2) must be there as it came. Returns how many of them are copies.
fn all_within_reach_come_back(input: &Tensors, arithmetic: Arithmetic, window: u64) -> usize {
    let mut vector = Vector::new(input, arithmetic, 1, window as u16, PAYLOAD);
    let fragments = vector.fragments();
    let mut came: Vec<Option<(Element, [u8; PAYLOAD])>> = vec![None; 3 * fragments as usize];
    let (mut copies, mut newest) = (0, 0);
    for round in 0..3 {
        let (mut base, end) = (round * fragments, (round + 1) * fragments);
        while base < end {
            // The newest that may be under way first: it does most harm.
            let next = end.min(base + window);
            let open = |seq: &u64| came[*seq as usize].is_none();
            let scales = |seq: &u64| open(seq) && matches!(vector.at(*seq), Fragment::Scales(_));
            let seq = (base..next).find(scales).or((base..next).rev().find(open));
            let seq = seq.expect("the base is open");
            let (element, payload) = any_payload(&mut vector, seq);
            let delivery = Delivery {
                latency: std::time::Duration::ZERO,
                from_ps: false,
            };
            vector.result(seq, element, &payload, delivery);
            came[seq as usize] = Some((element, payload));
            while base < end && came[base as usize].is_some() {
                base += 1;
            }
            copies += usize::from(vector.kept.get(seq).is_some_and(|(_, copy)| copy.is_some()));
            newest = newest.max(seq);
            for asked in (newest + 1).saturating_sub(2 * window)..next {
                let mut again = [0x5a; PAYLOAD];
                let element = vector.stored_result(asked, &mut again);
                let found = element.map(|element| (element, again));
                assert_eq!(
                    found, came[asked as usize],
                    "{asked} of {fragments} after {seq}"
                );
            }
        }
        vector.next_round();
    }
    copies
}

#[test]
fn results_come_back_as_they_came_for_two_windows() {
    let mixed = mixed();
    for arithmetic in [Arithmetic::Fixed, Arithmetic::Native, Arithmetic::Own] {
        for window in [1, 4, 16, 100] {
            all_within_reach_come_back(&mixed, arithmetic, window);
            for dtype in [
                Dtype::F32,
                Dtype::F16,
                Dtype::Bf16,
                Dtype::I32,
                Dtype::I16,
                Dtype::I8,
            ] {
                for elements in [1, 40, 63, 64, 65, 200, 777] {
                    let input = Tensors::synthetic(1, 2, elements, dtype);
                    all_within_reach_come_back(&input, arithmetic, window);
                }
            }
        }
    }
}

#[test]
fn every_fragment_has_the_names_of_its_tensors() {
    let input = mixed();
    for arithmetic in [Arithmetic::Fixed, Arithmetic::Native, Arithmetic::Own] {
        let vector = Vector::new(&input, arithmetic, 2, 4, PAYLOAD);
        let mut named = String::new();
        for seq in 0..vector.fragments() {
            let names = vector.names_in(seq);
            assert!(!names.is_empty(), "fragment {seq}");
            assert_eq!(
                names,
                vector.names_in(seq + vector.fragments()),
                "next round"
            );
            named.push_str(&names);
        }
        for tensor in input.layout.tensors.iter().filter(|t| t.elements > 0) {
            assert!(named.contains(&tensor.name), "{}", tensor.name);
        }
    }
}

#[test]
fn results_are_copied_only_where_they_would_be_lost() {
    let copies = |elements, dtype, arithmetic, window| {
        let input = Tensors::synthetic(1, 2, elements, dtype);
        all_within_reach_come_back(&input, arithmetic, window)
    };
    // 12 fragments of 16 elements, for three rounds.
    assert_eq!(copies(192, Dtype::F32, Arithmetic::Native, 6), 0);
    assert_eq!(copies(192, Dtype::I32, Arithmetic::Fixed, 6), 0);
    assert_eq!(copies(768, Dtype::I8, Arithmetic::Own, 6), 0);
    assert_eq!(copies(192, Dtype::F32, Arithmetic::Native, 7), 36);
    assert_eq!(copies(384, Dtype::F16, Arithmetic::Own, 4), 36);
    assert_eq!(
        copies(192, Dtype::F32, Arithmetic::Fixed, 4),
        39,
        "with their scales"
    );
}
