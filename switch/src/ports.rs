//! Opening the ports: how many queues each has, who steers frames into them, and whose they are.
//!
//! # How it works
//!
//! Each data core wants a transmit queue of its own on every port, so that what it makes leaves
//! without a hand-over, and a receive queue of its own that gets the frames of its shard. `Plan`
//! says what of that a port can have, from what its driver says of itself and the operator of its
//! other end:
//!
//! | steering | who puts frames into queues |
//! |---|---|
//! | `rules` | the NIC, by flow rules: UDP port of shard s to queue s |
//! | `rss` | the NIC, by a hash that knows nothing of shards |
//! | `peer` | the other end: what it sends from its queue s |
//! | `device` | the device, as it likes |
//! | `hand-over` | none: there is one queue, of the core that owns the port |
//!
//! In each case a frame of another shard is handed to its core. So steering is a matter of speed
//! and never of being right.
//!
//! # The catches
//!
//! - Drivers say that they have flow rules only when asked for one, on a port that runs. A port
//!   whose rules are refused uses RSS, or what else the device does.
//! - Both ends of a `net_memif` must have as many queues: the driver writes into the first ring
//!   what is for one that the other end does not have.

pub mod keeper;
pub mod lock;
mod storm;

use crate::board::PortShape;
use crate::config::{Config, PortSection, Steering};
use crate::pools::{Pools, node_of_cpu};
use crate::queues::{Rx, Tx};

use anyhow::{Context, Result, bail};
use tally_dpdk::{Eal, Port, PortConfig, PortInfo, Probed, Started};
use tally_engine::PortId;
use tally_engine::queue::QueueConfig;
use tally_packet::{Monitor, Ready, Segmenter};
use tally_schema::switch::report::Spread;

/// Transmit descriptors of a NIC at most, all its queues together. What the NIC has taken is out of
/// reach of priorities and marks, so it is no more than bridges the time between two turns of the
/// core: 22 µs of 1 KiB frames at 100 Gbit/s.
const TX_DESCRIPTORS: u16 = 256;
/// Of one of its queues, at least: two bursts.
const TX_DESCRIPTORS_MIN: u16 = 64;

/// What the ports and their frames come to.
pub struct Opened {
    /// What each port is opened on, by port.
    pub devices: Vec<Device>,
    /// What each data core has of them.
    pub cores: Vec<CoreQueues>,
    /// Their frames.
    pub pools: Pools,
    /// What reports say of them.
    pub shapes: Vec<PortShape>,
    /// Which of them send frames of several segments.
    pub chains: Vec<bool>,
}

/// What a port is opened on.
pub enum Device {
    /// A DPDK port, for as long as the switch runs.
    Dpdk(Port<Started>),
    /// An interface of the kernel; `None` while there is none of that name.
    Kernel(Option<Monitor>),
}

/// The queues of one data core.
#[derive(Default)]
pub struct CoreQueues {
    /// What it receives from.
    pub rx: Vec<(PortId, Rx)>,
    /// Which of them have something, for interfaces of the kernel, if there are any.
    pub ready: Option<Ready>,
    /// For each port what it sends to and how much waits for it, or the core that does so for it.
    pub tx: Vec<Result<(Tx, QueueConfig), usize>>,
}

/// A port that was opened, and its queues.
pub struct Made {
    /// What it is opened on.
    pub device: Device,
    /// What reports say of it.
    pub shape: PortShape,
    /// Whether it sends frames of several segments.
    pub chains: bool,
    /// What it receives from, with the core that does.
    pub rx: Vec<(usize, Rx)>,
    /// By core, what it sends to and how much waits for it, or the core that does so.
    pub tx: Vec<Result<(Tx, QueueConfig), usize>>,
}

/// Opens all ports, and keeps places for those that are added later.
///
/// # Errors
/// What devices refuse, and queues that they do not have.
pub fn open(eal: &Eal, config: &Config) -> Result<Opened> {
    let context = |section: &PortSection| format!("port {} ({})", section.label(), section.device);
    let mut found = Vec::new();
    for section in &config.ports {
        found.push(find(eal, section).with_context(|| context(section))?);
    }
    let nodes = found
        .iter()
        .map(|port| port.as_ref().and_then(|port| port.info().socket));
    let pools = Pools::new(eal, config, nodes)?;
    let cores = config.cores.len();
    let mut opened = Opened {
        devices: Vec::new(),
        cores: (0..cores).map(|_| CoreQueues::default()).collect(),
        pools,
        shapes: Vec::new(),
        chains: Vec::new(),
    };
    for (at, (section, port)) in config.ports.iter().zip(found).enumerate() {
        let maker = Maker {
            config,
            pools: &opened.pools,
            section,
            owner: owner(config, section, at),
        };
        let made = match port {
            Some(port) => maker.device(port),
            None => maker.interface(),
        }
        .with_context(|| context(section))?;
        opened.add(PortId(at as u16), made)?;
    }
    for at in config.ports.len()..config.ports_max() {
        let closed = closed_tx(config, at % cores);
        for (core, tx) in opened.cores.iter_mut().zip(closed) {
            core.tx.push(tx);
        }
        opened.chains.push(false);
    }
    Ok(opened)
}

/// The core that owns the port of this number.
#[must_use]
pub fn owner(config: &Config, section: &PortSection, at: usize) -> usize {
    section.core.unwrap_or(at % config.cores.len())
}

/// What the cores have of a port that is closed, which is that owner's.
#[must_use]
pub fn closed_tx(config: &Config, owner: usize) -> Vec<Result<(Tx, QueueConfig), usize>> {
    let of = |core| {
        if core == owner {
            Ok((Tx::Closed(0), config.queue_share(1)))
        } else {
            Err(owner)
        }
    };
    (0..config.cores.len()).map(of).collect()
}

/// Opens a port while the switch runs.
///
/// # Errors
/// What the device refuses.
pub fn make(
    eal: &Eal,
    config: &Config,
    pools: &Pools,
    section: &PortSection,
    owner: usize,
) -> Result<Made> {
    let maker = Maker {
        config,
        pools,
        section,
        owner,
    };
    match find(eal, section)? {
        Some(port) => maker.device(port),
        None => maker.interface(),
    }
}

/// The DPDK port; `None` if it is an interface of the kernel.
fn find(eal: &Eal, section: &PortSection) -> Result<Option<Port<Probed>>> {
    Ok(if section.interface().is_some() {
        None
    } else if section.is_pci() {
        Some(Port::pci(eal, section.device_name())?)
    } else {
        let arguments = section.device_arguments();
        Some(Port::vdev(eal, section.device_name(), arguments)?)
    })
}

impl Opened {
    /// Divides a port's queues among the cores.
    fn add(&mut self, id: PortId, made: Made) -> Result<()> {
        for (core, rx) in made.rx {
            let core = &mut self.cores[core];
            if let Rx::Kernel(rx) = &rx {
                let ready = match &mut core.ready {
                    Some(ready) => ready,
                    None => core.ready.insert(Ready::new()?),
                };
                ready.watch(rx)?;
            }
            core.rx.push((id, rx));
        }
        for (core, tx) in self.cores.iter_mut().zip(made.tx) {
            core.tx.push(tx);
        }
        self.devices.push(made.device);
        self.shapes.push(made.shape);
        self.chains.push(made.chains);
        Ok(())
    }
}

/// What a port is made from.
struct Maker<'a> {
    config: &'a Config,
    pools: &'a Pools,
    section: &'a PortSection,
    owner: usize,
}

impl Maker<'_> {
    fn device(&self, port: Port<Probed>) -> Result<Made> {
        let Self {
            config,
            section,
            owner,
            ..
        } = *self;
        let cores = config.cores.len() as u16;
        let info = port.info().clone();
        let plan = match Plan::new(section.steering, section.is_pci(), &info, cores) {
            Ok(plan) => plan,
            Err(why) => bail!("{why}"),
        };
        // It would never send what is longer, and nothing that is behind.
        if info.driver == "net_tap" && section.mtu > info.mtu_max {
            bail!(
                "`mtu` is {}, and net_tap has {} at most",
                section.mtu,
                info.mtu_max
            );
        }
        let core_node = config.cores.get(owner).and_then(|&cpu| node_of_cpu(cpu));
        let pool = self.pools.on(info.socket.or(core_node));
        // Only SwitchML's replies have several segments. Some NICs send faster without.
        let chains = config.switchml.is_some() && info.tx_multi_segment;
        let jumbo = section.mtu > crate::config::MTU_ORDINARY;
        let ask = PortConfig {
            rx_queues: plan.rx,
            tx_queues: plan.tx,
            rx_descriptors: section.descriptors,
            tx_descriptors: section
                .descriptors
                .min((TX_DESCRIPTORS / plan.tx).max(TX_DESCRIPTORS_MIN)),
            // A virtual device takes its MTU from its arguments or its kernel interface.
            mtu: (section.is_pci() && info.mtu_max >= section.mtu).then_some(section.mtu),
            rss: plan.rss,
            // Some NICs use less of a buffer than there is, and need two for a long frame.
            rx_scatter: section.is_pci() && jumbo,
            tx_multi_segment: chains,
            ..PortConfig::default()
        };
        let started = port.configure(&ask, std::slice::from_ref(pool))?.start()?;
        let mut shape = PortShape {
            name: section.label().to_owned(),
            rx_queues: plan.rx,
            tx_queues: plan.tx,
            steering: plan.spread_by,
            rules: 0,
            rules_refused: None,
        };
        if plan.rules {
            let address = &config.address;
            match started.port.steer_udp(address.ip, address.udp_port) {
                Ok(rules) => {
                    shape.rules = rules;
                    shape.steering = Spread::Rules;
                }
                Err(why) if section.steering == Steering::Rules => return Err(why.into()),
                Err(why) => shape.rules_refused = Some(why.to_string()),
            }
        }
        let core_of = |queue| match plan.rx {
            1 => owner,
            _ => queue % usize::from(cores),
        };
        let rx = started.rx.into_iter().enumerate();
        // Such a port may be added, too.
        let has_superframes = config.ports_max() > config.ports.len()
            || config.ports.iter().any(|port| port.interface().is_some());
        let pool = self.pools.on(info.socket.or(core_node));
        let tx = started.tx.into_iter().map(|queue| {
            if has_superframes {
                Tx::Cutting(Box::new((queue, Segmenter::new(pool.clone()))))
            } else {
                Tx::Dpdk(queue)
            }
        });
        let tx = tx.collect();
        Ok(Made {
            device: Device::Dpdk(started.port),
            shape,
            chains,
            rx: rx
                .map(|(queue, rx)| (core_of(queue), Rx::Dpdk(rx)))
                .collect(),
            tx: self.divide(plan.tx, tx),
        })
    }

    /// A kernel's interface has one queue each way.
    fn interface(&self) -> Result<Made> {
        let Self {
            config, section, ..
        } = *self;
        if !matches!(section.steering, Steering::Auto | Steering::Handover) {
            bail!("`steering` wants a receive queue for each data core, and the interface has one");
        }
        let (monitor, rx, tx) = match open_interface(config, self.pools, section, self.owner) {
            Ok((monitor, rx, tx)) => (Some(monitor), Some(rx), tx),
            Err(tally_packet::Error::NoInterface(_)) if section.optional => {
                (None, None, Tx::Closed(0))
            }
            Err(why) => return Err(why.into()),
        };
        Ok(Made {
            device: Device::Kernel(monitor),
            shape: PortShape {
                name: section.label().to_owned(),
                rx_queues: 1,
                tx_queues: 1,
                steering: single(config.cores.len() as u16),
                rules: 0,
                rules_refused: None,
            },
            chains: true,
            rx: rx.map(|rx| (self.owner, rx)).into_iter().collect(),
            tx: self.divide(1, vec![tx]),
        })
    }

    /// Divides `n` transmit queues among the cores.
    fn divide(&self, n: u16, queues: Vec<Tx>) -> Vec<Result<(Tx, QueueConfig), usize>> {
        let share = self.config.queue_share(n);
        let mut queues = queues.into_iter();
        let cores = self.config.cores.len();
        let all = usize::from(n) == cores;
        let of = |number| {
            let has_one = all || number == self.owner;
            let queue = has_one.then(|| queues.next()).flatten();
            queue.map(|tx| (tx, share)).ok_or(self.owner)
        };
        (0..cores).map(of).collect()
    }
}

/// Opens an interface of the kernel.
///
/// # Errors
/// Without the interface, or the right to.
pub fn open_interface(
    config: &Config,
    pools: &Pools,
    section: &PortSection,
    owner: usize,
) -> Result<(Monitor, Rx, Tx), tally_packet::Error> {
    let node = config.cores.get(owner).and_then(|&cpu| node_of_cpu(cpu));
    let name = section.interface().unwrap_or_default();
    let (mut rx, tx) = tally_packet::open_apart(name, pools.on(node))?;
    rx.forward_superframes(config.address.ip);
    let monitor = rx.monitor();
    Ok((monitor, Rx::Kernel(Box::new(rx)), Tx::Kernel(Box::new(tx))))
}

/// How the frames of a port with one receive queue find their core.
const fn single(cores: u16) -> Spread {
    if cores == 1 {
        Spread::SingleCore
    } else {
        Spread::HandOver
    }
}

/// The queues of one port, and who fills those for receiving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Plan {
    rx: u16,
    tx: u16,
    rss: bool,
    /// Whether to ask for flow rules.
    rules: bool,
    /// Without flow rules, and with more than one queue.
    spread_by: Spread,
}

impl Plan {
    fn new(steering: Steering, is_pci: bool, info: &PortInfo, cores: u16) -> Result<Self, String> {
        let pairs = if info.queue_pairs {
            info.rx_queues_max.min(info.tx_queues_max)
        } else {
            info.rx_queues_max
        };
        // Others put frames into no queue but the first unless configured.
        let steers = is_pci || info.driver == "net_tap";
        let one_each = match steering {
            Steering::Handover => false,
            Steering::Auto => steers && pairs >= cores,
            Steering::Rules | Steering::Rss | Steering::Peer if pairs < cores => {
                return Err(format!(
                    "`steering` wants a receive queue for each of {cores} data cores, and the device has {pairs}"
                ));
            }
            Steering::Rss if !info.rss => {
                return Err("`steering` wants RSS, and the device has none".to_owned());
            }
            Steering::Rules | Steering::Rss | Steering::Peer => true,
        };
        let rx = match (info.fixed_queues, one_each) {
            (true, _) => info.rx_queues_max.max(1),
            (false, true) => cores,
            (false, false) => 1,
        };
        let tx = if info.queue_pairs {
            rx
        } else if info.tx_queues_max >= cores {
            cores
        } else {
            1
        };
        let steered = one_each && rx > 1 && steering != Steering::Peer;
        let rss = steered && info.rss;
        Ok(Self {
            rx,
            tx,
            rss,
            rules: steered && steering != Steering::Rss,
            spread_by: match (rx, steering) {
                (1, _) => single(cores),
                _ if rss => Spread::Rss,
                (_, Steering::Peer) => Spread::Peer,
                _ => Spread::Device,
            },
        })
    }
}

#[cfg(test)]
mod tests;
