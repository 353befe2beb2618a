//! CPUs and memory, from `/proc` and `/sys`.

use std::fs;
use std::path::Path;

/// CPUs that threads of this process may be put on; `None` if the machine does not say.
///
/// An inherited mask (`taskset`) does not count, since data cores set their own. A cpuset does. So
/// each CPU is tried, on a thread that ends.
#[must_use]
pub fn cpus_allowed() -> Option<Vec<usize>> {
    let online = fs::read_to_string("/sys/devices/system/cpu/online").ok()?;
    let online = parse(online.trim())?;
    let may = |&id: &usize| core_affinity::set_for_current(core_affinity::CoreId { id });
    let tried = std::thread::spawn(move || online.into_iter().filter(may).collect());
    tried.join().ok()
}

/// A list as the kernel writes it: `0-3,8`.
fn parse(list: &str) -> Option<Vec<usize>> {
    let mut cpus = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        cpus.extend(first..=last);
    }
    Some(cpus)
}

/// The same the other way round.
pub(super) fn ranges(cpus: &[usize]) -> String {
    let mut parts: Vec<(usize, usize)> = Vec::new();
    for &cpu in cpus {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == cpu => *last = cpu,
            _ => parts.push((cpu, cpu)),
        }
    }
    let part = |(first, last): (usize, usize)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    parts.into_iter().map(part).collect::<Vec<_>>().join(",")
}

/// Memory that can be had without swapping.
pub(super) fn memory_available_mib() -> Option<u64> {
    let all = fs::read_to_string("/proc/meminfo").ok()?;
    let line = all
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib / 1024)
}

/// Hugepages of one size.
pub(super) struct Hugepages {
    pub(super) kib: u64,
    pub(super) free: u64,
}

/// By size.
pub(super) fn hugepages() -> Vec<Hugepages> {
    let Ok(entries) = fs::read_dir("/sys/kernel/mm/hugepages") else {
        return Vec::new();
    };
    let of = |entry: fs::DirEntry| {
        let name = entry.file_name();
        let kib = name.to_str()?.strip_prefix("hugepages-")?;
        let free = fs::read_to_string(entry.path().join("free_hugepages")).ok()?;
        Some(Hugepages {
            kib: kib.strip_suffix("kB")?.parse().ok()?,
            free: free.trim().parse().ok()?,
        })
    };
    entries.flatten().filter_map(of).collect()
}

/// Folders where hugetlbfs is mounted.
fn hugetlbfs() -> Vec<String> {
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    let of = |line: &str| {
        let mut words = line.split(' ').skip(1);
        let folder = words.next()?.to_owned();
        (words.next()? == "hugetlbfs").then_some(folder)
    };
    mounts.lines().filter_map(of).collect()
}

pub(super) fn has_hugetlbfs() -> bool {
    !hugetlbfs().is_empty()
}

/// Files of DPDK's with a prefix that hold hugepages.
#[must_use]
pub(super) fn left_over_pages(prefix: &str) -> usize {
    let start = format!("{prefix}map_");
    let count = |folder: String| {
        let entries = fs::read_dir(Path::new(&folder)).ok();
        let names = entries.into_iter().flatten().flatten();
        names
            .filter(|it| it.file_name().to_string_lossy().starts_with(&start))
            .count()
    };
    hugetlbfs().into_iter().map(count).sum()
}

/// Whether this process has a capability, by its number; `None` if the machine does not say.
pub(super) fn has_capability(number: u32) -> Option<bool> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))?;
    let all = u64::from_str_radix(line.trim(), 16).ok()?;
    Some(all >> number & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_are_read_and_written() {
        assert_eq!(parse("0-2,8,10-11"), Some(vec![0, 1, 2, 8, 10, 11]));
        assert_eq!(ranges(&[0, 1, 2, 8, 10, 11]), "0-2,8,10-11");
        assert_eq!(ranges(&[]), "");
        for bad in ["", "a", "1-", "1-b"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
        let ours = cpus_allowed().unwrap();
        assert!(!ours.is_empty());
    }
}
