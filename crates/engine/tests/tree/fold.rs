//! What sums of a tree ought to be: the fold of each node, of its hosts first and then of its
//! children, each rounded once. Shares no code with the engine or its kernels.

use crate::common::sums;
use half::{bf16, f16};
use tally_wire::{Element, FragmentId, JobId};

/// A node of a tree: its hosts by global rank, then its children by number.
#[derive(Clone, Debug, Default)]
pub struct Place {
    pub parent: Option<usize>,
    pub hosts: Vec<u8>,
    pub children: Vec<usize>,
}

impl Place {
    pub fn members(&self) -> u8 {
        (self.hosts.len() + self.children.len()) as u8
    }

    pub fn all(&self) -> u64 {
        (1 << self.members()) - 1
    }

    /// Its children, as a bitmap of local ranks.
    pub fn switches(&self) -> u64 {
        self.all() & !((1 << self.hosts.len()) - 1)
    }
}

/// The payload that combines the contributions of a node's local ranks in `bitmap`. `epoch` tells
/// contributions of epochs apart.
pub fn of(
    tree: &[Place],
    node: usize,
    epoch: u16,
    fragment: FragmentId,
    element: Element,
    bitmap: u64,
) -> Vec<u8> {
    let place = &tree[node];
    let hosts = place.hosts.iter().map(|&global| {
        let job = JobId(7 + epoch);
        sums::of(job, fragment, element, 1 << global)
    });
    let children = place.children.iter();
    let children =
        children.map(|&child| of(tree, child, epoch, fragment, element, tree[child].all()));
    let all: Vec<_> = hosts.chain(children).collect();
    let of_bitmap = all.into_iter().enumerate();
    let payloads = of_bitmap.filter(|(rank, _)| bitmap >> rank & 1 == 1);
    fold(element, payloads.map(|(_, payload)| payload).collect())
}

fn fold(element: Element, payloads: Vec<Vec<u8>>) -> Vec<u8> {
    let bytes = element.bytes();
    let at = |i: usize| {
        let element = i * bytes..(i + 1) * bytes;
        payloads
            .iter()
            .map(move |payload| payload[element.clone()].to_vec())
    };
    let floats = |i: usize, parse: fn(&[u8]) -> f32| {
        let sum = at(i).map(|b| parse(&b)).reduce(|a, b| a + b);
        sum.expect("at least one")
    };
    let ints = |i: usize, parse: fn(&[u8]) -> i64| at(i).map(|b| parse(&b)).sum::<i64>();
    let elements = 0..sums::BYTES / bytes;
    let small = "terms are small";
    let elements = elements.map(|i| match element {
        Element::I32 => {
            let sum = ints(i, |b| {
                i32::from_be_bytes(b.try_into().expect("four")).into()
            });
            i32::try_from(sum).expect(small).to_be_bytes().to_vec()
        }
        Element::F32 => {
            let sum = floats(i, |b| f32::from_le_bytes(b.try_into().expect("four")));
            sum.to_le_bytes().to_vec()
        }
        Element::F16 => {
            let sum = floats(i, |b| {
                f16::from_le_bytes(b.try_into().expect("two")).to_f32()
            });
            f16::from_f32(sum).to_le_bytes().to_vec()
        }
        Element::Bf16 => {
            let sum = floats(i, |b| {
                bf16::from_le_bytes(b.try_into().expect("two")).to_f32()
            });
            bf16::from_f32(sum).to_le_bytes().to_vec()
        }
        Element::I16 => {
            let sum = ints(i, |b| i16::from_be_bytes(b.try_into().expect("two")).into());
            i16::try_from(sum).expect(small).to_be_bytes().to_vec()
        }
        Element::I8 => {
            let sum = ints(i, |b| b[0].cast_signed().into());
            vec![i8::try_from(sum).expect(small).cast_unsigned()]
        }
        _ => vec![at(i).map(|b| b[0]).max().expect("at least one")],
    });
    elements.flatten().collect()
}
