//! Tests that need several processes start themselves again, as another user if told to.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

/// Who a child runs as.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum User {
    Same,
    /// Uid 65534; only root can become it.
    Unprivileged,
}

/// A folder that every user may use, gone with the value. It holds a copy of the test program,
/// which may lie where an unprivileged user can't read it.
pub struct Stage {
    pub folder: PathBuf,
    program: PathBuf,
}

impl Stage {
    pub fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("tally-{name}-{}", std::process::id()));
        fs::create_dir(&folder).expect("a new folder");
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).expect("it is ours");
        let program = folder.join("test");
        fs::copy(std::env::current_exe().expect("we are a program"), &program).expect("room");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("it is ours");
        Self { folder, program }
    }

    /// Starts the test `name` of this program, with `environment` on top.
    pub fn start(&self, name: &str, user: User, environment: &[(&str, &str)]) -> Child {
        let mut command = match user {
            User::Same => Command::new(&self.program),
            User::Unprivileged => {
                let mut command = Command::new("setpriv");
                command
                    .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
                    .args(["--inh-caps=-all", "--bounding-set=-all", "--"])
                    .arg(&self.program);
                command
            }
        };
        command
            .args([name, "--exact", "--nocapture"])
            .current_dir(&self.folder)
            .envs(environment.iter().copied());
        command.spawn().expect("it starts")
    }

    pub fn path(&self, name: &str) -> String {
        let path: &Path = &self.folder.join(name);
        path.to_str().expect("a plain path").to_owned()
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// The users to run as: us, and an unprivileged one if we are root.
pub fn users() -> Vec<User> {
    if super::is_root() {
        vec![User::Same, User::Unprivileged]
    } else {
        super::skipped("not root, so running as ourselves only");
        vec![User::Same]
    }
}
