//! Where a fleet is: a file, or etcd.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Where etcd's keys of a fleet begin, if the location does not say.
const PREFIX: &str = "tally";

/// Where a fleet is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// A file of one machine.
    File(PathBuf),
    /// Keys of etcd.
    Etcd(EtcdLocation),
}

/// Keys of etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdLocation {
    /// HOST:PORT of its members.
    pub endpoints: Vec<String>,
    /// What all keys begin with, with a slash at the end.
    pub prefix: String,
    text: PathBuf,
}

impl EtcdLocation {
    /// The location as it was given, for errors about what is there.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.text
    }
}

impl Location {
    /// The file, or the location of etcd, for errors. Paths that are relative to a fleet's file
    /// begin in its folder; in etcd there are none.
    #[must_use]
    pub fn path(&self) -> &Path {
        match self {
            Self::File(path) => path,
            Self::Etcd(it) => it.path(),
        }
    }
}

impl Location {
    /// A file beside that of a fleet: its name with this end.
    #[must_use]
    pub fn beside(&self, end: &str) -> PathBuf {
        let mut path = self.path().as_os_str().to_owned();
        path.push(end);
        path.into()
    }
}

impl FromStr for Location {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some(rest) = text.strip_prefix("etcd://") else {
            return Ok(Self::File(text.into()));
        };
        let (members, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let endpoints: Vec<_> = members.split(',').map(str::to_owned).collect();
        let is_endpoint = |it: &String| {
            it.rsplit_once(':')
                .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
        };
        if !endpoints.iter().all(is_endpoint) {
            return Err("expected etcd://HOST:PORT[,HOST:PORT …][/PREFIX]".to_owned());
        }
        let prefix = match prefix.trim_matches('/') {
            "" => PREFIX,
            given => given,
        };
        Ok(Self::Etcd(EtcdLocation {
            endpoints,
            prefix: format!("/{prefix}/"),
            text: text.into(),
        }))
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path().display().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_location_is_a_file_or_members_of_etcd_with_a_prefix() {
        let file: Location = "fleet.json".parse().unwrap();
        assert_eq!(file, Location::File("fleet.json".into()));
        let etcd = |text: &str| match text.parse().unwrap() {
            Location::Etcd(it) => (it.endpoints, it.prefix),
            Location::File(path) => panic!("{}", path.display()),
        };
        let one = vec!["10.0.0.1:2379".to_owned()];
        assert_eq!(
            etcd("etcd://10.0.0.1:2379"),
            (one.clone(), "/tally/".to_owned())
        );
        assert_eq!(etcd("etcd://10.0.0.1:2379/a/b/"), (one, "/a/b/".to_owned()));
        let two = vec!["a:1".to_owned(), "[::1]:2".to_owned()];
        assert_eq!(etcd("etcd://a:1,[::1]:2/x"), (two, "/x/".to_owned()));
        for wrong in [
            "etcd://",
            "etcd://a",
            "etcd://a:b",
            "etcd://a:1,",
            "etcd://:1",
        ] {
            let error = wrong.parse::<Location>().unwrap_err();
            assert!(error.contains("HOST:PORT"), "{wrong}: {error}");
        }
    }
}
