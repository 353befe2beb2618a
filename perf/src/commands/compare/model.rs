//! What Tally needs to serve a rack: arithmetic over assumptions, all of which are inputs.

use clap::Args as _;
use serde::Serialize;
use simd_json::prelude::*;

/// The assumptions. What was not measured is a guess: replace it by your own.
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
    /// Gbit/s of frames that one core sums and answers [default: as recorded by datapath, 1 KiB,
    /// i32, else 100]
    #[arg(long)]
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
}

impl Inputs {
    /// Name, question and value of every input, in order; those that have no value are left out.
    pub(super) fn fields(&self) -> Vec<(String, String, f64)> {
        let values = simd_json::serde::to_owned_value(self).unwrap_or_default();
        let command = Self::augment_args(clap::Command::new("inputs"));
        let field = |arg: &clap::Arg| {
            let name = arg.get_id().to_string();
            let help = arg.get_help()?.to_string();
            let question = help.split(" [").next()?.to_owned();
            let value = values.get(name.as_str())?.cast_f64()?;
            Some((name, question, value))
        };
        command.get_arguments().filter_map(field).collect()
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
        }
    }

    /// The first input that makes no sense.
    pub(super) fn wrong(&self) -> Option<String> {
        self.fields()
            .iter()
            .find(|(name, _, value)| {
                let is_share = ["duty", "headroom"].contains(&name.as_str());
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
    fn every_input_is_a_field_that_the_script_on_the_page_reads() {
        let Line { inputs } = Line::parse_from(["x", "--core-gbit", "80"]);
        let fields = inputs.fields();
        assert_eq!(fields.len(), 18);
        let page = include_str!("page.html");
        for (name, question, _) in fields {
            assert!(page.contains(&format!("v.{name}")), "{name}");
            assert!(
                !question.is_empty() && !question.contains('['),
                "{question}"
            );
        }
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        let wrong = |line: &[&str]| Line::parse_from(line).inputs.wrong();
        assert_eq!(wrong(&["x", "--nic-cost", "0"]), None);
        for line in [
            ["x", "--hosts", "0"],
            ["x", "--headroom", "1.5"],
            ["x", "--nic-gbit", "NaN"],
            ["x", "--core-gbit", "0"],
        ] {
            assert!(
                wrong(&line).is_some_and(|why| why.starts_with(line[1])),
                "{line:?}"
            );
        }
    }
}
