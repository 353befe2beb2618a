//! All-reduce in a ring of RoCEv2 hosts (NetReduce): by their NICs, without a job and without the
//! agent's protocol.
//!
//! Each tensor is an all-reduce in memory that the NIC reads and writes, in the byte order of the
//! tensors' names. It is copied in and out, since a file's tensors are not registered.

use crate::error::AgentError;
use crate::tensors::{Tensor, TensorError, Tensors};
use std::time::{Duration, Instant};
use tally_session::Dtype;
use tally_verbs::{Config, Element, Member};

/// What a ring did.
#[derive(Clone, Debug)]
pub struct Summary {
    /// The epoch.
    pub epoch: u32,
    /// Name of the device.
    pub device: String,
    /// Elements of all tensors.
    pub elements: usize,
    /// Time of all rounds, in all-reduces alone.
    pub spent: Duration,
    /// Goodput: bits of all tensors by that time.
    pub gbit_per_s: f64,
}

/// Replaces the tensors by their sums over all members of a ring, which bring the same ones.
///
/// # Errors
/// A type that a ring does not sum, or what ended the ring.
pub fn ring(
    config: Config,
    rounds: u32,
    mut input: Tensors,
) -> Result<(Tensors, Summary), AgentError> {
    let elements: Vec<_> = input
        .tensors
        .iter()
        .map(element)
        .collect::<Result<_, _>>()?;
    let mut member = Member::join(config)?;
    let mut spent = Duration::ZERO;
    for (tensor, element) in input.tensors.iter_mut().zip(elements) {
        if tensor.bytes.is_empty() {
            continue;
        }
        let mut memory = member.tensor(tensor.bytes.len())?;
        for _ in 0..rounds {
            memory.copy_from_slice(&tensor.bytes);
            let start = Instant::now();
            member.all_reduce(&mut memory, element)?;
            spent += start.elapsed();
        }
        tensor.bytes.copy_from_slice(&memory);
    }
    let bits = input.bytes() as f64 * 8.0 * f64::from(rounds);
    let summary = Summary {
        epoch: member.epoch().0,
        device: member.device().name().to_owned(),
        elements: input.elements(),
        spent,
        gbit_per_s: bits / spent.as_secs_f64().max(1e-9) / 1e9,
    };
    member.leave()?;
    Ok((input, summary))
}

/// How a ring sums the type of a tensor. Both are in the host's byte order.
fn element(tensor: &Tensor) -> Result<Element, AgentError> {
    if cfg!(target_endian = "big") {
        return Err(AgentError::Options(
            "rings need a little-endian host".into(),
        ));
    }
    match tensor.dtype {
        Dtype::I32 => Ok(Element::I32),
        Dtype::F32 => Ok(Element::F32),
        Dtype::F16 => Ok(Element::F16),
        Dtype::Bf16 => Ok(Element::Bf16),
        Dtype::I16 | Dtype::I8 => Err(TensorError::Ring {
            tensor: tensor.name.clone(),
            dtype: tensor.dtype,
        }
        .into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;
    use tally_program::Exit;
    use tally_verbs::RingId;
    use tally_verbs::rendezvous::RingConfig;

    fn config() -> Config {
        let ring = RingConfig {
            ring: RingId(7),
            key: "000102030405060708090a0b0c0d0e0f".parse().expect("a key"),
            members: 2,
        };
        let absent = Ipv4Addr::new(192, 0, 2, 1);
        Config::new(ring, 1, absent, (absent, 4790).into())
    }

    #[test]
    fn types_that_rings_do_not_sum_are_named() {
        let input = Tensors::synthetic(1, 0, 10, Dtype::I16);
        let error = ring(config(), 1, input).expect_err("no device either");
        let text = "tensor \"gradient\" is I16; a ring sums F32, F16, BF16 and I32";
        assert_eq!(error.to_string(), text);
    }

    #[test]
    fn a_host_without_the_device_is_told_so() {
        let input = Tensors::synthetic(1, 0, 10, Dtype::F32);
        let error = ring(config(), 1, input).expect_err("no such device");
        assert_eq!(error.exit_code(), Exit::System.code());
        assert!(error.to_string().starts_with("ring 7: rank 1: "), "{error}");
    }
}
