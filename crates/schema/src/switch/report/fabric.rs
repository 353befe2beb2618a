//! Links to other switches.

use serde::{Deserialize, Serialize};
use std::fmt;

/// One link to another switch. Its frames are those of its port.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FabricLinkReport {
    /// Name of its port.
    pub port: String,
    /// The switch at its other end, as configured.
    pub switch: String,
    /// Whether that is above.
    pub up: bool,
    /// Whether hellos come by it.
    pub alive: bool,
    /// For how long, in seconds.
    pub alive_s: f64,
    /// Times that it died.
    pub deaths: u64,
    /// The neighbour's own frames that were lost.
    pub frames_lost: u64,
    /// Frames that were not what is configured.
    pub wrong: u64,
    /// Switches of the lowest tier that are reached by the neighbour.
    pub reach: usize,
    /// What came last that was wrong, of a dead link.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

impl fmt::Display for FabricLinkReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let way = if self.up { "up" } else { "down" };
        write!(f, "{:<12} link {way} to {}: ", self.port, self.switch)?;
        match (self.alive, &self.problem) {
            (true, _) => write!(f, "alive for {:.1} s", self.alive_s)?,
            (false, None) => f.write_str("dead")?,
            (false, Some(problem)) => write!(f, "dead, found {problem}")?,
        }
        let (reach, deaths, lost) = (self.reach, self.deaths, self.frames_lost);
        write!(
            f,
            "; {reach} switches reached, {deaths} deaths, {lost} hellos lost"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_one_line() {
        let mut link = FabricLinkReport {
            port: "up1".into(),
            switch: "spine1".into(),
            up: true,
            alive: true,
            alive_s: 12.34,
            reach: 3,
            deaths: 1,
            frames_lost: 2,
            ..FabricLinkReport::default()
        };
        let line = "up1          link up to spine1: alive for 12.3 s; 3 switches reached, 1 deaths, 2 hellos lost";
        assert_eq!(link.to_string(), line);
        link.alive = false;
        link.problem = Some("switch `spine2`".into());
        assert!(
            link.to_string()
                .contains("spine1: dead, found switch `spine2`;")
        );
    }
}
