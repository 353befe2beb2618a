//! What Tally needs to serve a rack: arithmetic over assumptions, all of which are inputs.

use serde::Serialize;

/// The assumptions. What was not measured is somebody's guess: replace it by your own.
#[derive(clap::Args, Clone, Debug, Serialize)]
pub struct Inputs {
    /// Hosts of the rack
    #[arg(long, default_value_t = 32.0)]
    pub hosts: f64,
    /// Gbit/s of each host's link
    #[arg(long, default_value_t = 100.0)]
    pub link_gbit: f64,
    /// Share of the time in which a host sends gradients
    #[arg(long, default_value_t = 1.0)]
    pub duty: f64,
    /// Gbit/s of frames that one core takes in, sums and answers; by default as recorded by `datapath`
    /// (1 KiB, i32), else 100
    #[arg(long)]
    #[serde(skip)]
    pub core_gbit: Option<f64>,
    /// Share of a core's rate that is planned with
    #[arg(long, default_value_t = 0.8)]
    pub headroom: f64,
    /// Cores of a server
    #[arg(long, default_value_t = 64.0)]
    pub server_cores: f64,
    /// NICs that a server has slots for
    #[arg(long, default_value_t = 8.0)]
    pub server_nics: f64,
    /// Gbit/s of a NIC, all its ports together, as its slot carries them
    #[arg(long, default_value_t = 200.0)]
    pub nic_gbit: f64,
    /// Watts of a server without its NICs, busy
    #[arg(long, default_value_t = 500.0)]
    pub server_watts: f64,
    /// Watts of a NIC with its cables
    #[arg(long, default_value_t = 25.0)]
    pub nic_watts: f64,
    /// Cost of a server without its NICs
    #[arg(long, default_value_t = 12_000.0)]
    pub server_cost: f64,
    /// Cost of a NIC
    #[arg(long, default_value_t = 1200.0)]
    pub nic_cost: f64,
    /// Watts of the switch with Tofino that it replaces
    #[arg(long, default_value_t = 400.0)]
    pub tofino_watts: f64,
    /// Cost of that switch, when it could be had
    #[arg(long, default_value_t = 12_000.0)]
    pub tofino_cost: f64,
    /// Watts of an ordinary switch for the rack, to which an FPGA was added
    #[arg(long, default_value_t = 350.0)]
    pub rack_switch_watts: f64,
    /// Cost of that ordinary switch
    #[arg(long, default_value_t = 10_000.0)]
    pub rack_switch_cost: f64,
    /// Watts of FPGA cards for the rack's ports
    #[arg(long, default_value_t = 450.0)]
    pub fpga_watts: f64,
    /// Cost of those cards
    #[arg(long, default_value_t = 36_000.0)]
    pub fpga_cost: f64,
}

/// What follows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Needs {
    pub gbit: f64,
    pub cores: f64,
    pub nics: f64,
    pub servers: f64,
    pub watts: f64,
    pub cost: f64,
    pub tofino_watts: f64,
    pub tofino_cost: f64,
    pub fpga_watts: f64,
    pub fpga_cost: f64,
}

impl Inputs {
    /// Every input by the name that it has on the page, in order, with its question and its value.
    pub(super) fn fields(&self, core_gbit: f64) -> [(&'static str, &'static str, f64); 18] {
        [
            ("hosts", "hosts of the rack", self.hosts),
            ("link_gbit", "Gbit/s of each host's link", self.link_gbit),
            ("duty", "share of the time in which a host sends", self.duty),
            (
                "core_gbit",
                "Gbit/s of frames a core sums and answers",
                core_gbit,
            ),
            (
                "headroom",
                "share of a core's rate that is planned with",
                self.headroom,
            ),
            ("server_cores", "cores of a server", self.server_cores),
            ("server_nics", "NICs of a server", self.server_nics),
            ("nic_gbit", "Gbit/s of a NIC, all ports", self.nic_gbit),
            (
                "server_watts",
                "watts of a server without NICs",
                self.server_watts,
            ),
            ("nic_watts", "watts of a NIC with cables", self.nic_watts),
            (
                "server_cost",
                "cost of a server without NICs",
                self.server_cost,
            ),
            ("nic_cost", "cost of a NIC", self.nic_cost),
            (
                "tofino_watts",
                "watts of the Tofino switch",
                self.tofino_watts,
            ),
            ("tofino_cost", "cost of the Tofino switch", self.tofino_cost),
            (
                "rack_switch_watts",
                "watts of an ordinary switch",
                self.rack_switch_watts,
            ),
            (
                "rack_switch_cost",
                "cost of an ordinary switch",
                self.rack_switch_cost,
            ),
            (
                "fpga_watts",
                "watts of FPGA cards for the rack",
                self.fpga_watts,
            ),
            ("fpga_cost", "cost of those cards", self.fpga_cost),
        ]
    }

    /// The same as the script on the page computes.
    pub(super) fn needs(&self, core_gbit: f64) -> Needs {
        let gbit = self.hosts * self.link_gbit * self.duty;
        let cores = (gbit / (core_gbit * self.headroom)).ceil();
        // The links must be there, however seldom they are used.
        let nics = (self.hosts * self.link_gbit / self.nic_gbit).ceil();
        let by_cores = (cores / self.server_cores).ceil();
        let servers = by_cores.max((nics / self.server_nics).ceil());
        Needs {
            gbit,
            cores,
            nics,
            servers,
            watts: servers * self.server_watts + nics * self.nic_watts,
            cost: servers * self.server_cost + nics * self.nic_cost,
            tofino_watts: self.tofino_watts,
            tofino_cost: self.tofino_cost,
            fpga_watts: self.rack_switch_watts + self.fpga_watts,
            fpga_cost: self.rack_switch_cost + self.fpga_cost,
        }
    }

    /// The first input that makes no sense.
    pub(super) fn wrong(&self, core_gbit: f64) -> Option<String> {
        self.fields(core_gbit)
            .iter()
            .find(|(name, _, value)| {
                let is_share = ["duty", "headroom"].contains(name);
                let may_be_zero = name.ends_with("watts") || name.ends_with("cost");
                !value.is_finite()
                    || *value < 0.0
                    || (*value == 0.0 && !may_be_zero)
                    || (is_share && *value > 1.0)
            })
            .map(|(name, what, value)| format!("--{}: {what}: {value}", name.replace('_', "-")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        inputs: Inputs,
    }

    #[test]
    fn a_rack_needs_what_its_links_and_its_frames_need() {
        let Line { inputs } = Line::parse_from(["x"]);
        let needs = inputs.needs(100.0);
        assert_eq!((needs.gbit, needs.cores, needs.nics), (3200.0, 40.0, 16.0));
        assert_eq!(needs.servers, 2.0);
        assert_eq!(needs.watts, 2.0 * 500.0 + 16.0 * 25.0);
        assert_eq!(needs.cost, 2.0 * 12_000.0 + 16.0 * 1200.0);
        // A slow core: now cores decide.
        assert_eq!(inputs.needs(10.0).servers, 7.0);
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        let wrong = |line: &[&str]| Line::parse_from(line).inputs.wrong(100.0);
        assert_eq!(wrong(&["x", "--nic-cost", "0"]), None);
        for line in [
            ["x", "--hosts", "0"],
            ["x", "--headroom", "1.5"],
            ["x", "--nic-gbit", "NaN"],
        ] {
            assert!(
                wrong(&line).is_some_and(|why| why.starts_with(line[1])),
                "{line:?}"
            );
        }
    }
}
