//! The dialects of the switch: one row each.

use crate::native::Native;
use crate::netreduce::NetreduceDialect;
use crate::offload::Offload;
use crate::switchml::SwitchmlDialect;
use crate::{native, netreduce, offload, switchml};

crate::dialects! {
    /// Every dialect of the switch on one core.
    pub struct Dialects<P>,
    /// A command to a dialect.
    DialectCommand,
    /// What the dialects did on one core.
    #[derive(Clone, Debug)]
    DialectMetrics {
        /// Tally's own protocol, which serves jobs.
        Native, NATIVE, native: Native<P>, native::Command, native::Metrics;
        /// SwitchML's clients, if the switch serves them.
        Switchml, SWITCHML, switchml: Option<Box<SwitchmlDialect<P>>>,
            switchml::Command, Option<switchml::Metrics>;
        /// Rings of RoCEv2 hosts, if the switch serves them.
        Netreduce, NETREDUCE, netreduce: Option<Box<NetreduceDialect<P>>>,
            netreduce::Command, Option<netreduce::Metrics>;
        /// The card, if there is one.
        Offload, OFFLOAD, offload: Option<Box<Offload>>,
            offload::Command, Option<offload::CardTraffic>;
    }
}
