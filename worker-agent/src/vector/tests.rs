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
