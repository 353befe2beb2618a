//! The interface that an agent with sockets sends through, and what the kernel does with what
//! passes it.

use super::path::Path as Way;
use super::tool::{self, Missing};
use super::{Check, Verdict, path};
use crate::config::AgentConfig;
use crate::link::udp::{Group, SOCKET_BYTES, UdpLink, buffer_bytes};
use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::net::if_::InterfaceFlags;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::Path;
use std::time::{Duration, Instant};
use tally_wire::JobId;
use tally_wire::frame::group_of;

/// For the kernel to tell of a carrier.
const CARRIER_WITHIN: Duration = Duration::from_millis(1500);

/// An interface with an IPv4 address.
#[derive(Clone, Debug)]
struct Addressed {
    name: String,
    address: Ipv4Addr,
    /// Bits of its network.
    prefix: u32,
    flags: InterfaceFlags,
}

impl Addressed {
    fn has_in_its_network(&self, other: Ipv4Addr) -> bool {
        let mask = u32::MAX.checked_shl(32 - self.prefix).unwrap_or(0);
        self.prefix > 0 && self.address.to_bits() & mask == other.to_bits() & mask
    }
}

/// What `ip route get` says.
#[derive(Debug, serde::Deserialize)]
struct Route {
    dev: Option<String>,
    gateway: Option<String>,
}

pub(super) fn examine(config: &AgentConfig, file: &Path, bind: Ipv4Addr, checks: &mut Vec<Check>) {
    let switch = config.switch.address;
    let all = match getifaddrs() {
        Ok(all) => addressed(all),
        Err(why) => {
            let found = format!("the kernel does not list its interfaces: {why}");
            checks.push(Check::bad("address", found, "ip address show"));
            return;
        }
    };
    let Some(ours) = all.iter().find(|it| it.address == bind) else {
        checks.push(not_ours(&all, file, bind, switch));
        return;
    };
    let name = &ours.name;
    let found = format!("{bind}/{} is on {name}", ours.prefix);
    checks.push(Check::good("address", found));
    let link = link(&with_carrier(ours));
    let is_up = link.fix.is_none();
    checks.push(link);
    if !is_up {
        return;
    }
    let route = route(ours, switch);
    let routed = route.verdict;
    checks.push(route);
    checks.push(reverse_path(name, routed));
    let frames = path::frames(name);
    let fits = path::payload(config, file, name, &frames);
    let payload_fits = fits.verdict != Verdict::Bad;
    checks.push(fits);
    checks.push(buffers(bind));
    checks.extend(offloads(name));
    checks.push(multicast(config, ours));
    if routed == Verdict::Bad {
        return;
    }
    let way = Way {
        config,
        file,
        interface: name,
        bind,
        frames: frames.ok().filter(|_| payload_fits),
    };
    match UdpLink::open(SocketAddrV4::new(bind, 0), switch, None, None) {
        Ok(mut link) => path::examine(&way, &mut link, checks),
        Err(why) => checks.push(Check::bad("switch", why.to_string(), "ss -uanp")),
    }
}

/// The interface once it has a carrier, or after a while: the kernel takes up to a second to say so
/// of one that has just come up.
fn with_carrier(it: &Addressed) -> Addressed {
    let mut now = it.clone();
    let deadline = Instant::now() + CARRIER_WITHIN;
    while now.flags.contains(InterfaceFlags::IFF_UP)
        && !now.flags.contains(InterfaceFlags::IFF_RUNNING)
        && Instant::now() < deadline
    {
        std::thread::sleep(Duration::from_millis(50));
        let all = getifaddrs().map(addressed).unwrap_or_default();
        let same = |found: &Addressed| found.name == it.name && found.address == it.address;
        now = all.into_iter().find(same).unwrap_or(now);
    }
    now
}

/// The interface that has this address.
pub(super) fn name_of(address: Ipv4Addr) -> Option<String> {
    let all = addressed(getifaddrs().ok()?);
    let found = all.into_iter().find(|it| it.address == address);
    found.map(|it| it.name)
}

fn addressed(all: impl Iterator<Item = InterfaceAddress>) -> Vec<Addressed> {
    let one = |it: InterfaceAddress| {
        let address = it.address.as_ref()?.as_sockaddr_in()?.ip();
        let mask = it.netmask.as_ref().and_then(|mask| mask.as_sockaddr_in());
        Some(Addressed {
            name: it.interface_name,
            address,
            prefix: mask.map_or(32, |mask| mask.ip().to_bits().count_ones()),
            flags: it.flags,
        })
    };
    all.filter_map(one).collect()
}

/// The configured address is on no interface.
fn not_ours(all: &[Addressed], file: &Path, bind: Ipv4Addr, switch: Ipv4Addr) -> Check {
    let real = || {
        let it = all.iter();
        it.filter(|it| !it.flags.contains(InterfaceFlags::IFF_LOOPBACK))
    };
    let there: Vec<_> = real()
        .map(|it| format!("{} ({})", it.address, it.name))
        .collect();
    let found = format!(
        "no interface of this host has {bind}, which `transport.bind` says; there are {}",
        if there.is_empty() {
            "none with an IPv4 address".into()
        } else {
            there.join(", ")
        }
    );
    let near = real().find(|it| it.has_in_its_network(switch));
    let fix = match near.or_else(|| real().next()) {
        Some(it) if near.is_some() => format!(
            "\"bind\": \"{}\" in {}; or: ip address add {bind}/{} dev {}",
            it.address,
            file.display(),
            it.prefix,
            it.name
        ),
        Some(it) => format!("ip address add {bind}/24 dev {}", it.name),
        None => nameless().map_or_else(
            || "ip link show".into(),
            |name| format!("ip address add {bind}/24 dev {name} && ip link set dev {name} up"),
        ),
    };
    Check::bad("address", found, fix)
}

/// An interface that has no address, as getifaddrs(3) does not tell.
fn nameless() -> Option<String> {
    let names = nix::net::if_::if_nameindex().ok()?;
    let mut names = names.iter().filter_map(|it| it.name().to_str().ok());
    names.find(|name| *name != "lo").map(str::to_owned)
}

fn link(it: &Addressed) -> Check {
    let name = &it.name;
    if !it.flags.contains(InterfaceFlags::IFF_UP) {
        let fix = format!("ip link set dev {name} up");
        return Check::bad("link", format!("{name} is down"), fix);
    }
    if !it.flags.contains(InterfaceFlags::IFF_RUNNING) {
        let found = format!("{name} is up and has no carrier: the cable, or the other end");
        return Check::bad("link", found, format!("ethtool {name}"));
    }
    let speed = std::fs::read_to_string(format!("/sys/class/net/{name}/speed"));
    let speed = speed.ok().and_then(|text| text.trim().parse::<u32>().ok());
    let speed = speed.map_or(String::new(), |mbit| format!(", {mbit} Mbit/s"));
    Check::good("link", format!("{name} is up{speed}"))
}

/// Frames to the switch must leave by the interface, and no router may be between.
fn route(ours: &Addressed, switch: Ipv4Addr) -> Check {
    let (name, bind) = (&ours.name, ours.address);
    let (to, from) = (switch.to_string(), bind.to_string());
    if switch == bind {
        let found = format!("{switch} is this host's own address, and `switch.address`");
        return Check::bad("route", found, "the switch's own address as switch.address");
    }
    let add = format!("ip route replace {switch}/32 dev {name} src {bind}");
    let routes: Vec<Route> = match tool::ip(&["route", "get", &to, "from", &from]) {
        Ok(routes) => routes,
        Err(Missing { why, .. }) if why.contains("unreachable") => {
            let found = format!("the kernel has no route from {bind} to the switch, {switch}");
            return Check::bad("route", found, add);
        }
        Err(Missing { why, fix }) => {
            return Check::warning("route", format!("not known: {why}"), fix);
        }
    };
    let first = routes.into_iter().next();
    let (dev, gateway) = first.map_or((None, None), |it| (it.dev, it.gateway));
    match (dev, gateway) {
        (_, Some(gateway)) => {
            let found = format!(
                "the switch, {switch}, is behind the router {gateway}: results, which come to a group, do not pass it"
            );
            let fix = format!("{add}  (if {name} is on the switch)");
            Check::bad("route", found, fix)
        }
        (Some(dev), None) if dev == *name => {
            Check::good("route", format!("{switch} is reached by {name}"))
        }
        (dev, None) => {
            let dev = dev.unwrap_or_else(|| "no interface".into());
            let found = format!("what {bind} sends to {switch} leaves by {dev}, and not by {name}");
            Check::bad("route", found, add)
        }
    }
}

/// The filter drops what comes by another way than an answer would go.
fn reverse_path(name: &str, routed: Verdict) -> Check {
    let of = |interface: &str| {
        let path = format!("/proc/sys/net/ipv4/conf/{interface}/rp_filter");
        let text = std::fs::read_to_string(path).ok()?;
        text.trim().parse::<u8>().ok()
    };
    let (Some(all), Some(own)) = (of("all"), of(name)) else {
        let found = "not known: /proc/sys/net/ipv4/conf cannot be read";
        return Check::warning("rp_filter", found, "mount -t proc proc /proc");
    };
    // ip-sysctl.rst: the larger of the two counts; 0 no check, 1 strict, 2 loose.
    let found = format!("all {all}, {name} {own}");
    match all.max(own) {
        1 if routed == Verdict::Bad => {
            let found = format!(
                "{found}: strict, and the switch is not routed by {name}, so what it sends is dropped"
            );
            // With slashes, a name may have dots.
            let fix = format!("sysctl -w net/ipv4/conf/{name}/rp_filter=2");
            Check::bad("rp_filter", found, fix)
        }
        1 if routed == Verdict::Good => Check::good(
            "rp_filter",
            format!("{found}: strict, and the routes agree"),
        ),
        1 => {
            let found = format!("{found}: strict, and whether the routes agree is not known");
            Check::warning("rp_filter", found, "apt-get install iproute2")
        }
        _ => Check::good("rp_filter", found),
    }
}

/// What the kernel keeps for a socket of ours.
fn buffers(bind: Ipv4Addr) -> Check {
    match buffer_bytes(bind) {
        Ok((receive, send)) if receive >= SOCKET_BYTES && send >= SOCKET_BYTES => {
            let mib = SOCKET_BYTES >> 20;
            Check::good("buffers", format!("{mib} MiB each way and socket"))
        }
        Ok((receive, send)) => {
            let found = format!(
                "this user's sockets get {} KiB to receive and {} KiB to send, and want {}: bursts will be lost (root's \
                 sockets are not held to net.core.rmem_max)",
                receive >> 10,
                send >> 10,
                SOCKET_BYTES >> 10
            );
            let fix = format!(
                "sysctl -w net.core.rmem_max={SOCKET_BYTES} net.core.wmem_max={SOCKET_BYTES}"
            );
            Check::warning("buffers", found, fix)
        }
        Err(why) => Check::bad("buffers", format!("no socket at {bind}: {why}"), "ss -uanp"),
    }
}

/// What the interface does to frames.
fn offloads(name: &str) -> Vec<Check> {
    let features = match tool::text("ethtool", "ethtool", &["-k", name]) {
        Ok((true, text)) => text,
        Ok((false, text)) => {
            let why = text.lines().next().unwrap_or_default().to_owned();
            let found = format!("not known: `ethtool -k {name}`: {why}");
            return vec![Check::warning(
                "offloads",
                found,
                format!("ethtool -k {name}"),
            )];
        }
        Err(Missing { why, fix }) => {
            return vec![Check::warning("offloads", format!("not known: {why}"), fix)];
        }
    };
    // A pair of virtual ends passes superframes on whole, and joins none.
    let is_device = Path::new(&format!("/sys/class/net/{name}/device")).exists();
    validate(name, is_device, &features)
}

fn validate(name: &str, is_device: bool, features: &str) -> Vec<Check> {
    let is_on = |feature: &str| {
        let of = |line: &str| {
            let state = line.trim().strip_prefix(feature)?.strip_prefix(": ")?;
            Some(state.starts_with("on"))
        };
        features.lines().find_map(of)
    };
    let mut checks = Vec::new();
    if is_device && is_on("generic-receive-offload") == Some(false) {
        let found = format!("{name} hands results to the kernel one by one: more CPU for each");
        let fix = format!("ethtool -K {name} gro on");
        checks.push(Check::warning("offloads", found, fix));
    }
    if checks.is_empty() {
        checks.push(Check::good(
            "offloads",
            format!("those of {name} are right"),
        ));
    }
    checks
}

/// Results come to the job's group.
fn multicast(config: &AgentConfig, ours: &Addressed) -> Check {
    let name = &ours.name;
    if !ours.flags.contains(InterfaceFlags::IFF_MULTICAST) {
        let found = format!("{name} takes no multicast, by which results come");
        let fix = format!("ip link set dev {name} multicast on");
        return Check::bad("multicast", found, fix);
    }
    for job in &config.jobs {
        let address = group_of(JobId(job.id));
        let port = config.switch.port;
        let group = Some(Group { address, port });
        let at = SocketAddrV4::new(ours.address, 0);
        if let Err(why) = UdpLink::open(at, config.switch.address, group, None) {
            let found = format!("job {}: {why}", job.id);
            return Check::bad("multicast", found, format!("ss -uanp 'sport = :{port}'"));
        }
    }
    let groups = match config.jobs.as_slice() {
        [one] => group_of(JobId(one.id)).to_string(),
        all => format!("the groups of {} jobs", all.len()),
    };
    Check::good("multicast", format!("{name} listens to {groups}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_those_of_the_prefix() {
        let of = |prefix| Addressed {
            name: "eth0".into(),
            address: Ipv4Addr::new(10, 84, 0, 1),
            prefix,
            flags: InterfaceFlags::empty(),
        };
        let (near, far) = (Ipv4Addr::new(10, 84, 0, 254), Ipv4Addr::new(10, 85, 0, 1));
        assert!(of(24).has_in_its_network(near) && !of(24).has_in_its_network(far));
        assert!(of(8).has_in_its_network(far) && !of(32).has_in_its_network(near));
        assert!(!of(0).has_in_its_network(near));
    }

    #[test]
    fn offloads_matter_where_they_do_harm() {
        let features = |tso, gro| {
            format!(
                "Features for eth1:\nrx-checksumming: on\n\ttx-checksum-ipv4: on\ntcp-segmentation-offload: {tso}\n\
                 \ttx-tcp-segmentation: on\ngeneric-receive-offload: {gro}\n"
            )
        };
        let fixes = |is_device, tso, gro| {
            let checks = validate("eth1", is_device, &features(tso, gro));
            let fixes: Vec<_> = checks.into_iter().filter_map(|it| it.fix).collect();
            fixes.join("; ")
        };
        assert_eq!(fixes(true, "on", "on"), "");
        assert_eq!(fixes(true, "on", "off"), "ethtool -K eth1 gro on");
        // The switch forwards superframes.
        assert_eq!(fixes(false, "on", "off"), "");
        assert_eq!(fixes(false, "off [fixed]", "off"), "");
        assert_eq!(validate("eth1", true, "")[0].verdict, Verdict::Good);
    }
}
