//! How much memory the pool has, and who may have how much of it.
//!
//! A slot's accumulator is the frame that opened it, so a pool of as many slots as frames fit a
//! cache stays in that cache. By default it is half of the data cores' L2 caches, each by what the
//! machine reports for the CPU; the other half is for what comes and goes.
//!
//! Under `esa` each job has by default a little for certain: all jobs together an eighth of the
//! pool. Priorities are what workers claim; without this a tenant that claims 255 for everything
//! would have all slots for itself.
//!
//! Contributions held out of order are guaranteed as slots are, but by reservation, since they
//! cannot be evicted. A slot of a job takes at most its workers less one of them.

use super::{Config, ConfigError, TenantJob};
use serde::{Deserialize, Serialize};
use std::path::Path;
use tally_engine::native::admission::MAX_JOBS;
use tally_engine::native::policy::Static;
use tally_engine::native::pool::MAX_WAYS;
use tally_engine::{Limits, PolicyName, PoolConfig, PoolJob};
use tally_wire::{HEADERS_BYTES, JobId, UNIT_BYTES};

/// Places for jobs that are added while the switch runs, unless configured.
const SPARE_PLACES: u16 = 4;
/// For so many workers less one is each of them, where packet memory is measured.
pub(super) const SPARE_OTHERS: u32 = 3;
/// Most slots of a switch.
const MAX_SLOTS: u32 = 1 << 24;
/// What jobs have for certain by default, all together: the pool divided by this.
const CERTAIN_DIVISOR: u32 = 8;
/// A CPU's L2 cache where the machine does not say.
const L2_BYTES_UNKNOWN: u64 = 512 << 10;

/// The aggregator pool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PoolSection {
    /// `esa`, `fcfs`, `static` or `none`.
    #[serde(with = "crate::text")]
    #[schemars(with = "String")]
    pub policy: PolicyName,
    /// Slots of all shards together, a power of two; by default what fits half of the L2 caches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slots: Option<u32>,
    /// Instead of `slots`: bytes of frames that they may hold, all shards together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Slots that a fragment may be in; by default what suits the policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ways: Option<u32>,
    /// Contributions held out of order, all shards together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held: Option<u32>,
    /// Most jobs at a time, for which packet memory is measured; by default those configured, those
    /// that tenants may have, and (but under `static`) four more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_jobs: Option<u16>,
}

/// A job as the pool is divided.
struct Share {
    id: u16,
    workers: u8,
    min_slots: Option<u32>,
    max_slots: Option<u32>,
}

impl Config {
    /// Bytes of the longest Tally frame, which is what a slot holds.
    fn slot_bytes(&self) -> u64 {
        (HEADERS_BYTES + usize::from(self.units()) * UNIT_BYTES) as u64
    }

    /// Slots of all shards together.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.pool.slots.unwrap_or_else(|| {
            let cores = self.cores.len() as u64;
            let bytes_each = match self.pool.bytes {
                Some(bytes) => bytes / cores,
                None => self.l2_bytes().unwrap_or(L2_BYTES_UNKNOWN) / 2,
            };
            let each = (bytes_each / self.slot_bytes()).max(1);
            let each = each.min(u64::from(MAX_SLOTS) / cores);
            (cores << each.ilog2()) as u32
        })
    }

    /// Bytes of frames that the slots may hold.
    #[must_use]
    pub fn pool_bytes(&self) -> u64 {
        u64::from(self.slots()) * self.slot_bytes()
    }

    /// What a data core has of an L2 cache, the least of all cores; `None` if the machine does not
    /// say.
    fn l2_bytes(&self) -> Option<u64> {
        let share = |&cpu| {
            let L2 { bytes, cpus } = L2::of(cpu)?;
            let sharers = self.cores.iter().filter(|core| cpus.contains(core));
            Some(bytes / sharers.count().max(1) as u64)
        };
        self.cores.iter().map(share).min().flatten()
    }

    /// What the operator should know of how the pool's size came about.
    #[must_use]
    pub fn pool_warning(&self) -> Option<String> {
        let is_default = self.pool.slots.is_none() && self.pool.bytes.is_none();
        (is_default && self.l2_bytes().is_none()).then(|| {
            format!(
                "the machine does not report the L2 cache of CPU {:?}: the pool has {} slots, for {} KiB each; \
                 set pool.slots or pool.bytes",
                self.cores,
                self.slots(),
                L2_BYTES_UNKNOWN >> 10
            )
        })
    }

    /// Largest window that the switch serves: no more than a job's slots, beyond which the job
    /// would only collide with itself.
    #[must_use]
    pub fn served_window(&self) -> u16 {
        let shards = self.cores.len() as u32;
        let slots = match self.pool.policy {
            PolicyName::Static => {
                shards * Static::share(self.places().into(), self.slots() / shards)
            }
            PolicyName::Esa | PolicyName::Fcfs => self.slots(),
            PolicyName::None => u32::MAX,
        };
        self.window.min(u16::try_from(slots).unwrap_or(u16::MAX))
    }

    /// Slots that a fragment may be in.
    #[must_use]
    pub fn ways(&self) -> u32 {
        let each = self.slots() / self.cores.len() as u32;
        let default = self.pool.policy.default_ways().min(each);
        self.pool.ways.unwrap_or(default)
    }

    /// The pool of one shard.
    #[must_use]
    pub fn pool(&self, shard: u8) -> PoolConfig {
        let shards = self.cores.len() as u32;
        PoolConfig {
            slots: self.slots() / shards,
            ways: self.ways(),
            held: self.held() / shards,
            window: self.served_window(),
            shards: shards as u8,
            shard,
            jobs: self.pool_jobs(&[]),
            policy: self.pool.policy,
            places: self.places(),
        }
    }

    /// Jobs that there may be at a time.
    #[must_use]
    pub fn places(&self) -> u16 {
        let places = self.places_needed() + u32::from(self.spare_places());
        u16::try_from(places).unwrap_or(u16::MAX)
    }

    /// Jobs that are configured, and that tenants may have.
    pub(super) fn places_needed(&self) -> u32 {
        let tenants = self.tenants.iter().map(|tenant| u32::from(tenant.max_jobs));
        self.jobs.len() as u32 + tenants.sum::<u32>()
    }

    /// Places for jobs beyond these.
    #[must_use]
    pub fn spare_places(&self) -> u16 {
        let needed = self.places_needed();
        let spare = match (self.pool.max_jobs, self.pool.policy) {
            (Some(most), _) => u32::from(most).saturating_sub(needed),
            // A place is a share of the slots.
            (None, PolicyName::Static) => 0,
            (None, _) => u32::from(SPARE_PLACES).min((MAX_JOBS as u32).saturating_sub(needed)),
        };
        spare as u16
    }

    /// The same with what is measured at the start written down: what is applied to it later does
    /// not change the memory that the switch has.
    #[must_use]
    pub fn measured(&self) -> Self {
        let mut measured = self.clone();
        measured.pool = PoolSection {
            policy: self.pool.policy,
            slots: Some(self.slots()),
            bytes: None,
            ways: Some(self.ways()),
            held: Some(self.held()),
            max_jobs: Some(self.places()),
        };
        measured
    }

    /// Configured jobs and these of tenants, as the pool is divided among them.
    fn shares(&self, of_tenants: &[TenantJob]) -> Vec<Share> {
        let jobs = self.jobs.iter().map(|job| Share {
            id: job.id,
            workers: job.members(),
            min_slots: job.min_slots,
            max_slots: job.max_slots,
        });
        let of_tenants = of_tenants.iter().map(|&TenantJob { id, workers }| {
            let tenant = self.tenant_of(id);
            let beside = of_tenants
                .iter()
                .filter(|other| tenant.is_some_and(|tenant| tenant.has(other.id)));
            let most = tenant.and_then(|tenant| tenant.max_slots);
            Share {
                id,
                workers,
                min_slots: None,
                max_slots: most.map(|slots| (slots / beside.count().max(1) as u32).max(1)),
            }
        });
        jobs.chain(of_tenants).collect()
    }

    /// The jobs, those of tenants too, and what each may have of one shard: its part of what it may
    /// have of all, at least 1 of what is configured.
    #[must_use]
    pub fn pool_jobs(&self, of_tenants: &[TenantJob]) -> Vec<PoolJob> {
        let all = self.shares(of_tenants);
        let shards = self.cores.len() as u32;
        let part = |slots: u32| (slots / shards).max(1);
        let keeps = self.pool.policy.policy().preempts();
        // Never more than what is left of those that are configured.
        let given = |job: &Share| job.min_slots.filter(|&slots| slots > 0).map(part);
        let given_all = all.iter().filter_map(given);
        let left = given_all.fold(self.slots() / shards, u32::saturating_sub);
        let jobs = all.len().max(1) as u32;
        let certain = (self.slots() / (CERTAIN_DIVISOR * jobs) / shards).min(left / jobs);
        let held = self.held_minimums(&all);
        let jobs = all.iter().zip(held).map(|(job, min_held)| {
            let max_slots = job.max_slots.map_or(u32::MAX, part);
            let min_slots = match job.min_slots {
                Some(_) => given(job).unwrap_or(0),
                None if keeps => certain.min(max_slots),
                None => 0,
            };
            let limits = Limits {
                min_slots,
                max_slots,
                min_held,
            };
            let id = JobId(job.id);
            PoolJob { id, limits }
        });
        jobs.collect()
    }

    /// Held contributions of one shard that are reserved for each job: first those of its
    /// `min_slots`, then, for jobs without `min_slots`, those of a whole window if that leaves
    /// enough for all of them, else half of the rest.
    fn held_minimums(&self, all: &[Share]) -> Vec<u32> {
        let shards = self.cores.len() as u32;
        let part = |slots: u32| (slots / shards).max(1);
        // Of a job's fragments, no more than a window have slots at a time (W-2).
        let window = u32::from(self.served_window()).div_ceil(shards);
        let of = |job: &Share, slots: u32| {
            let slots = slots.min(job.max_slots.map_or(u32::MAX, part)).min(window);
            slots * u32::from(job.workers).saturating_sub(1)
        };
        let given = |job: &Share| match job.min_slots {
            None | Some(0) => 0,
            Some(slots) => of(job, part(slots)),
        };
        let rest = |job: &Share| match job.min_slots {
            None => of(job, window),
            Some(_) => 0,
        };
        let arena = self.held() / shards;
        let mut held = fit(all.iter().map(given).collect(), arena, arena);
        let left = arena - held.iter().sum::<u32>();
        let rest = fit(all.iter().map(rest).collect(), left, left / 2);
        held.iter_mut()
            .zip(rest)
            .for_each(|(held, more)| *held += more);
        held
    }

    pub(super) fn check_pool(&self, path: &Path) -> Result<(), ConfigError> {
        let bad = |key: &str, found: &dyn std::fmt::Display, allowed: &str| {
            Err(ConfigError::value(path, key.to_owned(), found, allowed))
        };
        let cores = self.cores.len();
        let pool = &self.pool;
        if let Some(slots) = pool.slots
            && (!slots.is_power_of_two() || (slots as usize) < cores || slots > MAX_SLOTS)
        {
            let allowed = format!("a power of two from {cores} (one for each core) to {MAX_SLOTS}");
            return bad("pool.slots", &slots, &allowed);
        }
        if let Some(bytes) = pool.bytes {
            if pool.slots.is_some() {
                return bad(
                    "pool.bytes",
                    &bytes,
                    "one of pool.slots and pool.bytes, not both",
                );
            }
            let least = self.slot_bytes() * cores as u64;
            if bytes < least {
                let allowed = format!("at least {least}, a frame for each core");
                return bad("pool.bytes", &bytes, &allowed);
            }
        }
        let each = self.slots() / cores as u32;
        if let Some(ways) = pool.ways
            && (!ways.is_power_of_two() || ways > MAX_WAYS.min(each))
        {
            let allowed = format!("1, 2, 4 or 8, at most the {each} slots of a core");
            return bad("pool.ways", &ways, &allowed);
        }
        let needed = self.places_needed();
        if needed > MAX_JOBS as u32 {
            let found = format!("{needed} jobs with those that tenants may have");
            return bad("jobs", &found, &format!("at most {MAX_JOBS}"));
        }
        if let Some(most) = pool.max_jobs
            && !(needed..=MAX_JOBS as u32).contains(&u32::from(most))
        {
            let allowed = format!("{needed} (jobs and tenants[].max_jobs together) to {MAX_JOBS}");
            return bad("pool.max_jobs", &most, &allowed);
        }
        if let Some(held) = pool.held.filter(|&held| held > MAX_SLOTS) {
            return bad("pool.held", &held, &format!("0 to {MAX_SLOTS}"));
        }
        Ok(())
    }

    pub(super) fn check_limits(&self, path: &Path) -> Result<(), ConfigError> {
        let bad = |key: String, found: &dyn std::fmt::Display, allowed: &str| {
            Err(ConfigError::value(path, key, found, allowed))
        };
        let policy = self.pool.policy;
        for (i, job) in self.jobs.iter().enumerate() {
            let key = |field: &str| format!("jobs[{i}].{field}");
            if job.max_slots == Some(0) {
                return bad(
                    key("max_slots"),
                    &0,
                    "1 or more; leave it out for no maximum",
                );
            }
            let Some(min) = job.min_slots.filter(|&min| min > 0) else {
                continue;
            };
            if !policy.policy().preempts() {
                let allowed =
                    format!("none under policy {policy}, which takes no slot from anybody");
                return bad(key("min_slots"), &min, &allowed);
            }
            if let Some(max) = job.max_slots.filter(|&max| max < min) {
                return bad(key("min_slots"), &min, &format!("at most max_slots, {max}"));
            }
        }
        let shards = self.cores.len() as u64;
        let jobs = self.pool_jobs(&[]).into_iter();
        let certain = jobs.map(|job| u64::from(job.limits.min_slots));
        let certain = certain.sum::<u64>() * shards;
        if certain > u64::from(self.slots()) {
            let found = format!("{certain} slots for all jobs together (at least 1 a core)");
            let allowed = format!("together at most the pool's slots, {}", self.slots());
            return bad("jobs[].min_slots".into(), &found, &allowed);
        }
        Ok(())
    }
}

/// The numbers if together they are at most `all`, else their shares of `part`.
fn fit(mut numbers: Vec<u32>, all: u32, part: u32) -> Vec<u32> {
    let sum: u64 = numbers.iter().map(|&n| u64::from(n)).sum();
    if sum > u64::from(all) {
        let share = |n: u32| (u64::from(n) * u64::from(part) / sum) as u32;
        numbers.iter_mut().for_each(|n| *n = share(*n));
    }
    numbers
}

/// A CPU's L2 cache as the machine reports it.
struct L2 {
    bytes: u64,
    /// CPUs that share it.
    cpus: Vec<usize>,
}

impl L2 {
    fn of(cpu: usize) -> Option<Self> {
        let cache = format!("/sys/devices/system/cpu/cpu{cpu}/cache");
        Self::read(|index, name| {
            std::fs::read_to_string(format!("{cache}/index{index}/{name}")).ok()
        })
    }

    /// From the files of a CPU's caches, by their index and name.
    fn read(file: impl Fn(usize, &str) -> Option<String>) -> Option<Self> {
        let is_l2 = |&i: &usize| file(i, "level").is_some_and(|level| level.trim() == "2");
        let index = (0..8).find(is_l2)?;
        let cpus = file(index, "shared_cpu_list").unwrap_or_default();
        Some(Self {
            bytes: size(file(index, "size")?.trim())?,
            cpus: cpus.trim().split(',').filter_map(range).flatten().collect(),
        })
    }
}

/// `1024K`, as Linux writes the size of a cache.
fn size(text: &str) -> Option<u64> {
    let (digits, shift) = match text.strip_suffix('K') {
        Some(digits) => (digits, 10),
        None => (text.strip_suffix('M')?, 20),
    };
    let size: u64 = digits.parse().ok()?;
    (size > 0).then_some(size << shift)
}

/// `3`, or `0-1`.
fn range(text: &str) -> Option<std::ops::RangeInclusive<usize>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Some(first.parse().ok()?..=last.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_is_read_as_linux_writes_it() {
        let file = |i: usize, name: &str| {
            let files = [
                ["1", "48K", "0"],
                ["1", "32K", "0"],
                ["2", "2048K", "0-1,8"],
                ["3", "32M", "0-15"],
            ];
            let at = ["level", "size", "shared_cpu_list"]
                .iter()
                .position(|n| *n == name);
            Some(format!("{}\n", files.get(i)?[at?]))
        };
        let l2 = L2::read(file).unwrap();
        assert_eq!((l2.bytes, l2.cpus), (2 << 20, vec![0, 1, 8]));
        assert_eq!(size("32M"), Some(32 << 20));
        for nonsense in ["", "K", "0K", "12", "-1K"] {
            assert_eq!(size(nonsense), None, "{nonsense}");
        }
        assert!(L2::read(|_, _| None).is_none());
        assert!(L2::of(usize::MAX).is_none(), "no such CPU");
    }
}
