//! Where a host asks for its place in a job.

use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use tally_config::ConfigError;

/// The controllers of the host's fleet, for `tally-agent join`. Files without a folder in front
/// are beside the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AgentController {
    /// HOST:PORT of each controller. One of them works, and answers.
    pub addresses: Vec<String>,
    /// This host's certificate, PEM. It has the host's name in the fleet as DNS name.
    pub certificate: PathBuf,
    /// Key of the certificate, PEM.
    pub key: PathBuf,
    /// The authority of the controllers' certificates, PEM.
    pub ca: PathBuf,
    /// Name in the controllers' certificates, if it is not HOST.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_name: Option<String>,
    /// This host's name in the fleet; by default that of the system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
}

impl AgentController {
    pub(super) fn check(&self, path: &Path) -> Result<(), ConfigError> {
        if self.addresses.is_empty() {
            let key = "controller.addresses";
            return Err(ConfigError::value(
                path,
                key,
                "none",
                "one HOST:PORT or more",
            ));
        }
        let is_address = |it: &String| {
            it.rsplit_once(':')
                .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
        };
        for (i, address) in self.addresses.iter().enumerate() {
            if !is_address(address) {
                let key = format!("controller.addresses[{i}]");
                return Err(ConfigError::value(path, key, address, "HOST:PORT"));
            }
        }
        Ok(())
    }
}
