//! The oracle: what may leave because of a frame, and what it may change.

use super::*;

/// What a frame is to the switch.
pub(super) enum Input<'a> {
    /// Of Tally's own protocol, for this shard.
    Native(usize, Member, Header, &'a [u8]),
    /// Of SwitchML.
    Switchml(Request<'a>),
    /// To its MAC, but nothing that it takes.
    Local,
    /// In its name.
    Spoofed,
    /// Of other hosts.
    Transit,
}

impl<'a> Input<'a> {
    pub(super) fn of(port: PortId, frame: &'a [u8]) -> Self {
        let is_local = frame.starts_with(&SWITCH_MAC.0);
        if frame.get(6..12) == Some(&SWITCH_MAC.0) {
            return Self::Spoofed;
        }
        let nothing = if is_local { Self::Local } else { Self::Transit };
        let Ok(udp) = UdpFrame::parse(frame) else {
            return nothing;
        };
        let a = udp.addresses;
        if a.src_ip == SWITCH_IP {
            return Self::Spoofed;
        }
        if a.dst_ip != SWITCH_IP {
            return nothing;
        }
        if let Some(request) = Request::of(port, &udp, frame) {
            return Self::Switchml(request);
        }
        let shard = usize::from(a.dst_port.wrapping_sub(BASE_PORT));
        let datagram = udp.datagram(frame);
        match Header::parse(datagram) {
            Ok(header) if is_local && shard < usize::from(SHARDS) => {
                let sender = Member {
                    port,
                    mac: a.src_mac,
                    ip: a.src_ip,
                    udp_port: a.src_port,
                };
                let header = header.received_with(udp.ecn);
                let payload = &datagram[22..22 + header.payload_bytes()];
                Self::Native(shard, sender, header, payload)
            }
            // To its IPv4 address, but not to its MAC: forwarded by no means.
            _ => Self::Local,
        }
    }
}

impl World {
    /// A frame that is no dialect's.
    pub(super) fn judge_ordinary(
        &mut self,
        input: &Input<'_>,
        ingress: PortId,
        frame: &[u8],
        sent: &[(PortId, Vec<u8>)],
    ) {
        match input {
            Input::Spoofed => assert!(sent.is_empty(), "in the switch's name: {sent:?}"),
            _ if is_question(frame) && is_answer(sent, ingress, frame) => {}
            Input::Transit if !sent.is_empty() => {
                self.summary.forwarded += 1;
                assert_ne!(frame[..6], SWITCH_MAC.0);
                for (port, bytes) in sent {
                    assert_ne!(*port, ingress, "sent back");
                    assert_eq!(bytes, frame, "changed on its way");
                }
                let ports: Vec<_> = sent.iter().map(|(port, _)| *port).collect();
                let spared = self.clients.ports();
                let is_flooded = |port: &PortId| *port != ingress && !spared.contains(port);
                let flood = (0..PORTS).map(PortId).filter(is_flooded);
                let mut sorted = ports.clone();
                sorted.sort_unstable();
                assert!(
                    ports.len() == 1 || sorted.into_iter().eq(flood),
                    "{ports:?}"
                );
            }
            _ => assert!(sent.is_empty(), "{sent:?}"),
        }
    }

    /// A frame of Tally's own protocol, and what it led to.
    #[allow(clippy::too_many_arguments, reason = "all that the frame led to")]
    pub(super) fn validate(
        &mut self,
        at: usize,
        sender: Member,
        header: &Header,
        sent: Vec<Sent>,
        effect: bool,
        reason: Option<DropReason>,
        control: Vec<ControlFrame>,
    ) {
        let aggregator = self.switch.cores[at].dialects.native.aggregator();
        let held: u32 = (0..2).map(|place| aggregator.slots_of(job_id(place))).sum();
        assert_eq!(held as usize, aggregator.slots_in_use(), "counted wrong");
        if self.is_forged(header) {
            assert!(!effect, "the effect of a wrong tag: {header:?} {sent:?}");
            self.summary.forged += u64::from(reason == Some(DropReason::AuthTag));
        }
        if header.kind == Kind::Probe {
            assert!(sent.len() <= 1, "S-7: {sent:?}");
        }
        for sent in sent {
            self.check(header, sender, sent);
        }
        let is_membership = matches!(header.kind, Kind::Join | Kind::Leave);
        assert_eq!(control.len(), usize::from(is_membership), "{header:?}");
        for frame in control {
            assert_eq!((frame.from, &frame.header), (sender, header));
            self.membership(&frame);
        }
    }

    /// Whether its tag is wrong in the epoch of its job that runs.
    pub(super) fn is_forged(&self, header: &Header) -> bool {
        let bound = place_of(header.job).map(|place| &self.bound[place]);
        let roster = bound.and_then(|bound| bound.roster.as_ref());
        roster.is_some_and(|roster| !roster.secret.verifies(header))
    }

    /// Remembers what a bound member says.
    pub(super) fn note(&mut self, at: usize, sender: Member, header: &Header, payload: &[u8]) {
        let Some(place) = place_of(header.job) else {
            return;
        };
        let bound = &mut self.bound[place];
        let Some(roster) = &bound.roster else { return };
        let rank = match header.kind {
            Kind::Data => header.rank,
            Kind::Result if roster.secret.verifies(header) => header.rank,
            _ => return,
        };
        let is_bound = match rank {
            Rank::PS => roster.servers[0] == sender,
            Rank(r) => roster.workers.get(usize::from(r)) == Some(&sender),
        };
        let fragment = header.fragment.0;
        let is_here = fragment as usize % usize::from(SHARDS) == at;
        if !is_bound || header.epoch != roster.epoch || !is_here || header.units != roster.units {
            return;
        }
        if fragment >= 1 << 20 {
            bound.wild = true;
        }
        if header.kind == Kind::Data {
            *bound.said.entry(fragment).or_default() |= header.bitmap;
        }
        let sensible = header.element == element_of(fragment)
            && roster.units == 1
            && payload == canonical(header);
        if !sensible {
            bound.tainted.insert(fragment);
        }
    }

    /// What leaves is true.
    pub(super) fn check(&mut self, cause: &Header, asker: Member, sent: Sent) {
        let Sent {
            ports,
            to,
            header,
            payload,
        } = sent;
        let place = place_of(header.job).expect("a configured job");
        let bound = &self.bound[place];
        let roster = bound.roster.as_ref().expect("it runs");
        let group = group_of(header.job);
        let is_to_group = to.dst_ip == group;
        if is_to_group {
            let expected = (Mac::of_group(group), BASE_PORT);
            assert_eq!((to.dst_mac, to.dst_port), expected);
            assert_eq!((header.kind, header.rank), (Kind::Result, Rank::SWITCH));
        }
        if is_to_group && ports != roster.ports {
            assert_eq!(ports, [asker.port], "to who asked");
            assert_eq!((header.job, header.fragment), (cause.job, cause.fragment));
            let fragment = cause.fragment.0;
            assert!(bound.published.contains(&fragment), "never published");
            if !bound.tainted.contains(&fragment) {
                let all = all_of(place);
                let element = element_of(fragment);
                let sum = sums::of(cause.job, cause.fragment, element, all);
                assert_eq!(payload, sum, "from the ring");
            }
            return;
        }
        let is_it = |member: &Member| {
            let address = (member.mac, member.ip, member.udp_port);
            (to.dst_mac, to.dst_ip, to.dst_port) == address && ports == [member.port]
        };
        let to = if is_to_group {
            None
        } else if is_it(&roster.servers[0]) {
            Some(Rank::PS)
        } else {
            let rank = roster.workers.iter().position(is_it);
            Some(Rank(rank.expect("to a member, on its port") as u8))
        };
        let header = Header {
            tag: AuthTag::NONE,
            ..header
        };
        let place = place_of(header.job).expect("a configured job");
        let bound = &mut self.bound[place];
        let roster = bound.roster.as_ref().expect("it runs");
        assert_eq!(header.epoch, roster.epoch);
        match to {
            Some(Rank::PS) => {
                if header.kind == Kind::Probe {
                    let tag = AuthTag::NONE;
                    assert_eq!(header, Header { tag, ..*cause }, "as it came");
                    self.summary.probes_to_ps += 1;
                }
            }
            Some(rank) => {
                assert_eq!((header.kind, header.rank), (Kind::Nack, rank));
                self.summary.nacks += 1;
                assert_eq!(header.fragment, cause.fragment);
                // S-7: others are asked for a fragment that the asker has contributed to.
                let said = bound.said.get(&header.fragment.0).copied().unwrap_or(0);
                let is_of_probe = cause.kind == Kind::Probe;
                assert!(!is_of_probe || rank == cause.rank || said & cause.rank.bit() != 0);
            }
            None => {
                self.summary.results += 1;
                let first = bound.published.insert(header.fragment.0);
                assert!(first || bound.wild, "published twice: {header:?}");
            }
        }
        if !header.kind.has_elements() {
            return;
        }
        assert_eq!(payload.len(), header.payload_bytes());
        let from_ps = cause.kind == Kind::Result && cause.rank == Rank::PS;
        assert_eq!(header.flags.has(Flags::FROM_PS), from_ps);
        if cause.kind != Kind::Result {
            self.summary.partials += u64::from(header.kind == Kind::Partial);
            let said = bound.said.get(&header.fragment.0).copied().unwrap_or(0);
            let ranks = ranks_of(&header);
            assert_eq!(ranks & !said, 0, "no member said that: {header:?}");
            let fits = sums::may_be_one_frame(header.element, ranks, all_of(place));
            assert!(fits, "H-3: {header:?}");
        }
        if !bound.tainted.contains(&header.fragment.0) {
            assert_eq!(payload, canonical(&header), "{header:?}");
        }
    }
}

/// Whether a frame may be answered in place: an ARP request or an ICMP echo.
fn is_question(frame: &[u8]) -> bool {
    let is_arp = frame.get(12..22) == Some(&[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    let is_echo = frame.get(12..15) == Some(&[8, 0, 0x45]) && frame.get(23) == Some(&1);
    is_arp || is_echo && frame.starts_with(&SWITCH_MAC.0)
}

/// Whether this is an answer, which goes back by the port that it came from.
fn is_answer(sent: &[(PortId, Vec<u8>)], ingress: PortId, frame: &[u8]) -> bool {
    matches!(sent, [(port, answer)] if *port == ingress && answer != frame)
}

/// The ranks whose contributions a frame with elements has.
fn ranks_of(header: &Header) -> u64 {
    match (header.kind, place_of(header.job)) {
        (Kind::Result, Some(place)) => all_of(place),
        _ => header.bitmap,
    }
}

/// What the frame of this header ought to carry.
pub(super) fn canonical(header: &Header) -> Vec<u8> {
    let ranks = ranks_of(header) & 0xfff;
    if header.units == 0 || ranks == 0 || header.element == Element::None {
        return Vec::new();
    }
    sums::of(header.job, header.fragment, header.element, ranks)
}
