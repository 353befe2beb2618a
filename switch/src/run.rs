//! Building the switch from its configuration, running it, and taking it down.
//!
//! The order matters in both directions. Up: EAL, ports and pools, threads. Down: data cores (they
//! own queues and frames), control, ports, and then the pools must be whole: a frame that is
//! missing is a bug, and the switch says so and fails.

mod cores;

use crate::api::{self, Api};
use crate::bus::Bus;
use crate::card::{CardThread, Ends, Setup};
use crate::config::{Config, LimitsSection, Log, MemoryKind};
use crate::control::live::{Live, job_config, tenant_config};
use crate::control::request::{ControlHandle, requests};
use crate::control::trees::Parents;
use crate::control::{CardLink, Control, StatsSocket};
use crate::control_queue::control_queue;
use crate::events::{self, GrowthWatch};
use crate::fabric::FabricThread;
use crate::messages::{CoreCommand, CoreReport};
use crate::plane::{Cores, Directory};
use crate::pools::{self, Pools};
use crate::ports::keeper::{Keeper, Keeping, PortsHandle};
use crate::ports::lock;
use crate::report::{self, Shape};
use crate::switchml::controller::{self, Limits};
use crate::telemetry;
use crate::watch::Watch;
use crate::watchdog::{self, Turns};
use anyhow::{Context, Result};
use cores::{CardEnds, CoreBuilder};
use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tally_dpdk::Memory as PacketMemory;
use tally_dpdk::{Eal, EalConfig, LogLevel, Telemetry};
use tally_engine::offload::Pulse;
use tally_engine::switchml::controller::Event;
use tally_engine::{
    Action, Forwarding, ForwardingConfig, Member, PortId, Registry, RegistryConfig, SwitchAddress,
    registry,
};
use tally_program::service;
use tally_schema::switch::report::Report;
use tally_wire::{JobId, SwitchName, Time, UNIT_BYTES};

/// Probes of the card on their way to its thread at most.
const PROBES: usize = 16;

/// A running switch.
pub struct Switch {
    stop: Arc<AtomicBool>,
    cores: Vec<JoinHandle<CoreReport>>,
    api: Option<Api>,
    telemetry: Option<Telemetry>,
    control: JoinHandle<Registry>,
    controller: Option<controller::Running>,
    card: Option<(CardLink, JoinHandle<()>)>,
    watchdog: Option<JoinHandle<()>>,
    fabric: Option<JoinHandle<()>>,
    /// Held so that the data cores find it until the end.
    bus: Bus,
    ports: (PortsHandle, JoinHandle<()>),
    pools: Pools,
    shape: Shape,
    directory: Arc<Directory>,
    epoch: Instant,
    handle: ControlHandle,
}

/// What tells a running switch something.
#[derive(Clone, Debug, Default)]
pub struct Signals {
    /// It is to stop.
    pub stop: Arc<AtomicBool>,
    /// It is to read its file again.
    pub hangup: Arc<AtomicBool>,
}

impl Switch {
    /// Starts the switch. It runs until it is told to stop and [`wait`](Self::wait) returns. `path`
    /// is the file that the configuration came from, for reloads.
    ///
    /// # Errors
    /// What the machine refuses: memory, devices, CPUs, the statistics socket.
    pub fn start(config: &Config, path: Option<PathBuf>, signals: Signals) -> Result<Self> {
        let Signals { stop, hangup } = signals;
        let kernels = config.kernels().map_err(anyhow::Error::msg)?;
        // Before anything that a second switch on the same ports would disturb.
        let locks = lock::take_all(config)?;
        let socket = stats_socket(config)?;
        let listeners = config.control.as_ref().map(api::listen).transpose()?;
        let eal = Eal::init(&eal_config(config))?;
        let opened = crate::ports::open(&eal, config)?;
        let epoch = Instant::now();
        let (commands, senders) = channels(config.cores.len(), unbounded::<CoreCommand>);
        let bus = Bus::new(senders);
        let (to_control, frames) = control_queue(config.ports_max());
        let forwarding = forwarding(config)?;
        let shape = Shape::new(config, kernels.backend(), opened.shapes);
        let directory = Arc::new(Directory::default());
        let card = card_setup(config).map(|setup| CardParts::new(setup, &bus, epoch, &stop));
        let turns = Turns::default();
        let (handle, asked) = requests();
        let telemetry = telemetry::start(&eal, config, &handle)?;
        let mut control = Control {
            live: Live::new(config, path, handle.clone()),
            requests: asked,
            is_in_fabric: config.fabric.is_some(),
            parents: Parents::default(),
            ports: None,
            hangup,
            card: card.as_ref().map(|card| card.link.clone()),
            watch: Watch::new(Arc::clone(&directory), port_names(config)),
            conflicts: None,
            registry: registry(config)?,
            frames,
            bus: bus.clone(),
            socket,
            shape: shape.clone(),
            epoch,
            turns: turns.clone(),
            stop: Arc::clone(&stop),
            growth: GrowthWatch::new(port_names(config)),
        };
        // In the cores' queues before their first frame.
        let fixed = fix_members(config, &mut control.registry);
        control.carry_out(fixed);
        // Before there are threads to end if it cannot listen; cores hear it as soon as they run.
        let controller = start_controller(config, &bus, &directory, epoch)?;
        control.conflicts = controller.as_ref().map(controller::Running::conflicts);
        let (keeper, ports) = Keeper::new(Keeping {
            eal: eal.clone(),
            config: config.clone(),
            devices: opened.devices,
            locks,
            pools: opened.pools.clone(),
            bus: bus.clone(),
            forwarding: forwarding.clone(),
            board: shape.board.clone(),
            epoch,
            stop: Arc::clone(&stop),
            random,
        });
        control.ports = Some(ports.clone());
        let builder = CoreBuilder {
            config,
            eal,
            kernels,
            own: own_address(config),
            forwarding: forwarding.clone(),
            pools: &opened.pools,
            chains: opened.chains,
            card: card.as_ref().map(|card| card.ends.clone()),
            to_control,
            epoch,
            stop: Arc::clone(&stop),
        };
        let cores = builder.start(opened.cores, commands)?;
        let card = card.map(CardParts::start).transpose()?;
        let ports = (ports, start_keeper(keeper)?);
        let fabric = start_fabric(config, &forwarding, &bus, &shape, epoch, &stop)?;
        let control = start_control(control, config.control_core)?;
        let start_api = |all| Api::start(all, handle.clone(), bus.clone(), forwarding, epoch);
        let api = listeners.map(start_api).transpose()?;
        let watchdog = watchdog::start(bus.clone(), turns, Arc::clone(&stop))?;
        Ok(Self {
            stop,
            cores,
            api,
            telemetry,
            control,
            controller,
            card,
            watchdog,
            fabric,
            bus,
            ports,
            pools: opened.pools,
            shape,
            directory,
            epoch,
            handle,
        })
    }

    /// The way to its control thread.
    #[must_use]
    pub fn handle(&self) -> ControlHandle {
        self.handle.clone()
    }

    /// Where its request channel listens.
    #[must_use]
    pub fn control_places(&self) -> &[String] {
        self.api.as_ref().map_or(&[], |api| &api.places)
    }

    /// Where SwitchML's controller listens, in the order of the configuration.
    #[must_use]
    pub fn switchml_addresses(&self) -> &[SocketAddr] {
        let controller = self.controller.as_ref();
        controller.map_or(&[], controller::Running::addresses)
    }

    /// Waits until the switch has been told to stop, takes it down, and says what it did.
    ///
    /// # Errors
    /// If a thread panicked.
    pub fn wait(self) -> Result<Report> {
        let mut reports = Vec::new();
        for core in self.cores {
            reports.push(
                core.join()
                    .map_err(|_| anyhow::anyhow!("a data core panicked"))?,
            );
        }
        self.stop.store(true, Ordering::Relaxed);
        service::stopping();
        drop(self.api);
        drop(self.telemetry);
        drop(self.controller);
        let registry = self
            .control
            .join()
            .map_err(|_| anyhow::anyhow!("the control thread panicked"))?;
        let card = match self.card {
            Some((link, thread)) => {
                // It may wait for the card's registers, but not for long.
                thread
                    .join()
                    .map_err(|_| anyhow::anyhow!("the card's thread panicked"))?;
                Some(link.report())
            }
            None => None,
        };
        if let Some(watchdog) = self.watchdog {
            let ended = watchdog.join();
            ended.map_err(|_| anyhow::anyhow!("the watchdog's thread panicked"))?;
        }
        if let Some(fabric) = self.fabric {
            let ended = fabric.join();
            ended.map_err(|_| anyhow::anyhow!("the fabric's thread panicked"))?;
        }
        drop(self.bus);
        let up = self.epoch.elapsed();
        let (handle, ports) = self.ports;
        drop(handle);
        // It may wait for a device, but not for long.
        ports
            .join()
            .map_err(|_| anyhow::anyhow!("the ports' thread panicked"))?;
        let directory = &self.directory;
        let mut report = report::report(&self.shape, up, &reports, &registry, directory, card);
        report.frames_missing = Some(self.pools.in_use());
        Ok(report)
    }
}

/// Names of the ports, in the order of the configuration.
fn port_names(config: &Config) -> Vec<String> {
    let ports = config.ports.iter();
    ports.map(|port| port.label().to_owned()).collect()
}

fn start_keeper(keeper: Keeper) -> std::io::Result<JoinHandle<()>> {
    let named = std::thread::Builder::new().name("ports".into());
    named.spawn(move || keeper.run())
}

/// Starts the thread that hears other switches, if there are links to some.
fn start_fabric(
    config: &Config,
    forwarding: &Forwarding,
    bus: &Bus,
    shape: &Shape,
    epoch: Instant,
    stop: &Arc<AtomicBool>,
) -> std::io::Result<Option<JoinHandle<()>>> {
    let thread = crate::fabric::start(config, random()).map(|fabric| FabricThread {
        fabric,
        forwarding: forwarding.clone(),
        bus: bus.clone(),
        ports: shape.board.clone(),
        board: shape.fabric.clone(),
        epoch,
        stop: Arc::clone(stop),
    });
    thread.map(FabricThread::start).transpose()
}

fn start_control(control: Control, cpu: Option<usize>) -> std::io::Result<JoinHandle<Registry>> {
    let thread = std::thread::Builder::new().name("control".into());
    thread.spawn(move || {
        if let Some(id) = cpu {
            core_affinity::set_for_current(core_affinity::CoreId { id });
        }
        control.run()
    })
}

/// A card's thread before it runs, and what others tell it by.
struct CardParts {
    link: CardLink,
    thread: CardThread,
    ends: CardEnds,
}

impl CardParts {
    fn start(self) -> std::io::Result<(CardLink, JoinHandle<()>)> {
        let Self { link, thread, .. } = self;
        let named = std::thread::Builder::new().name("card".into());
        Ok((link, named.spawn(move || thread.run())?))
    }

    fn new(setup: Setup, bus: &Bus, epoch: Instant, stop: &Arc<AtomicBool>) -> Self {
        let (news, told) = unbounded();
        let (probes, answers) = bounded(PROBES);
        let report = Arc::new(Mutex::new(report::card(&setup.section)));
        let pulse = Arc::new(Pulse::default());
        let ends = Ends {
            news: told,
            answers,
            bus: bus.clone(),
            pulse: Arc::clone(&pulse),
            report: Arc::clone(&report),
        };
        Self {
            link: CardLink { news, report },
            thread: CardThread::new(setup, ends, epoch, Arc::clone(stop)),
            ends: CardEnds { pulse, probes },
        }
    }
}

fn stats_socket(config: &Config) -> Result<Option<StatsSocket>> {
    let Some(path) = &config.stats_socket else {
        return Ok(None);
    };
    let socket = StatsSocket::bind(path, &config.stats_access);
    let socket = socket.with_context(|| format!("statistics socket {}", path.display()))?;
    Ok(Some(socket))
}

/// Starts SwitchML's controller, if it is configured.
fn start_controller(
    config: &Config,
    bus: &Bus,
    directory: &Arc<Directory>,
    epoch: Instant,
) -> Result<Option<controller::Running>> {
    let mut secret = [0; 32];
    getrandom::fill(&mut secret).context("random numbers for SwitchML's workers")?;
    let controller = config.switchml_controller(secret);
    let Some((section, controller)) = config.switchml.as_ref().zip(controller) else {
        return Ok(None);
    };
    let cores = Cores::new(bus.clone(), Arc::clone(directory), epoch);
    let log = |event: &Event| events::say_session(event);
    let listen: Vec<_> = section.listen.iter().map(|l| l.address).collect();
    let limits = Limits::new(section.allow.clone());
    let running = controller::start(limits, &listen, controller, cores, epoch, log)?;
    Ok(Some(running))
}

fn own_address(config: &Config) -> SwitchAddress {
    SwitchAddress {
        mac: config.address.mac,
        ip: config.address.ip,
        base_port: config.address.udp_port,
    }
}

/// A random number; 0 if the system has none, which it had at the start.
fn random() -> u64 {
    let mut bytes = [0; 8];
    let _ = getrandom::fill(&mut bytes);
    u64::from_ne_bytes(bytes)
}

fn channels<T>(
    n: usize,
    make: impl Fn() -> (Sender<T>, Receiver<T>),
) -> (Vec<Receiver<T>>, Vec<Sender<T>>) {
    (0..n).map(|_| make()).map(|(tx, rx)| (rx, tx)).unzip()
}

fn eal_config(config: &Config) -> EalConfig {
    let megabytes = pools::megabytes(config);
    let mut eal = EalConfig::no_huge(megabytes);
    eal.memory = match config.eal.memory {
        MemoryKind::NoHuge => PacketMemory::NoHuge { megabytes },
        MemoryKind::InMemory => PacketMemory::InMemory { megabytes },
        MemoryKind::Hugepages => PacketMemory::Hugepages { megabytes },
    };
    eal.telemetry = config.eal.telemetry;
    eal.main_cpu = config.cores.first().copied();
    eal.pci_allow = config
        .ports
        .iter()
        .filter(|port| port.is_pci())
        .map(|port| port.device_name().to_owned())
        .collect();
    eal.log_level = match config.eal.log {
        Log::Error => LogLevel::Error,
        Log::Warning => LogLevel::Warning,
        Log::Notice => LogLevel::Notice,
        Log::Debug => LogLevel::Debug,
    };
    eal
}

fn registry(config: &Config) -> Result<Registry> {
    let mut secret = [0; 32];
    getrandom::fill(&mut secret).context("random numbers for challenges and epochs")?;
    let registry = RegistryConfig {
        mac: config.address.mac,
        base_port: config.address.udp_port,
        shards: config.cores.len() as u8,
        window: config.served_window(),
        units: config.units(),
        member_timeout: Duration::from_millis(config.member_timeout_ms),
        secret,
        fabric: fabric_config(config),
    };
    let jobs = config.jobs.iter().map(job_config);
    let mut registry = Registry::new(registry, jobs.collect());
    for tenant in &config.tenants {
        registry.set_tenant(Time(0), tenant_config(tenant));
    }
    Ok(registry)
}

/// The switch as a part of a fabric.
fn fabric_config(config: &Config) -> Option<registry::Fabric> {
    let (fabric, name) = config.fabric.as_ref().zip(config.name.as_ref())?;
    Some(registry::Fabric {
        name: SwitchName::new(name),
        key: fabric.key.clone(),
        previous_key: fabric.previous_key.clone(),
    })
}

fn forwarding(config: &Config) -> Result<Forwarding> {
    let mut seed = [0; 8];
    getrandom::fill(&mut seed).context("random numbers for the table of addresses")?;
    let LimitsSection {
        addresses,
        answers_per_s,
        ..
    } = config.limits;
    let forwarding = ForwardingConfig {
        mac: config.address.mac,
        ip: config.address.ip,
        ports: config.ports_max() as u16,
        ageing_s: config.mac_ageing_s,
        addresses,
        floods_per_s: config.limits.floods(),
        answers_per_s,
        seed: u64::from_ne_bytes(seed),
    };
    let plan = crate::fabric::plan(config);
    Ok(match plan.zip(config.fabric.as_ref()) {
        Some((plan, section)) => Forwarding::in_fabric(&forwarding, &plan, section.floods()),
        None => Forwarding::new(&forwarding),
    })
}

/// What the card's thread is told, if there is a card.
fn card_setup(config: &Config) -> Option<Setup> {
    let own = own_address(config);
    let section = config.card.clone()?;
    let port = config
        .ports
        .iter()
        .find(|port| port.label() == section.port)?;
    let jobs = config.jobs.iter().filter(|job| job.may_be_on_card());
    Some(Setup {
        own: tally_bridge::Own {
            mac: own.mac,
            ip: own.ip,
            base_port: own.base_port,
            shards: config.cores.len() as u16,
        },
        window: config.served_window(),
        frame_bytes: port.longest_frame(),
        jobs: jobs.map(|job| JobId(job.id)).collect(),
        section,
    })
}

fn fix_members(config: &Config, registry: &mut Registry) -> Vec<Action> {
    let port_of = |name: &str| {
        let at = config.ports.iter().position(|port| port.label() == name);
        // `Config::check` has seen to it that the name is one of them.
        PortId(at.unwrap_or_default() as u16)
    };
    let member = |m: &crate::config::FixedMember| Member {
        port: port_of(&m.port),
        mac: m.mac,
        ip: m.ip,
        udp_port: m.udp_port,
    };
    let mut actions = Vec::new();
    for job in &config.jobs {
        if let Some(fixed) = &job.fixed {
            let units = (usize::from(fixed.payload_bytes) / UNIT_BYTES) as u8;
            let workers = fixed.workers.iter().map(member).collect();
            actions.push(registry.fix_members(JobId(job.id), units, workers, member(&fixed.ps)));
        }
    }
    actions
}
