//! Commands of DPDK's telemetry socket, which `dpdk-telemetry.py` asks: the program answers them.
//!
//! DPDK knows a command by its name and keeps it until the process ends. So there is one source of
//! answers for all commands, which [`Telemetry`] sets, and takes away when it is dropped. Answers
//! come one after the other, on threads of DPDK's.
//!
//! Catches: the names in an answer have letters, digits, `_` and `/` alone; any other character
//! becomes `_`. DPDK takes 256 values or 512 names, and leaves out what does not fit its reply of
//! 16 KiB.

use std::ffi::{CStr, CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};

use dpdk_sys as sys;

use crate::Eal;
use crate::error::{Error, c_string};

/// What is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Names: what the command takes as its parameter.
    Names(Vec<String>),
    /// Values by name.
    Values(Vec<(String, Value)>),
}

/// A value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A number.
    Number(u64),
    /// A text.
    Text(String),
}

/// Answers a command with its parameter, what stands behind a comma; `None`: there is no such
/// thing.
type Source = Box<dyn Fn(&str, &str) -> Option<Answer> + Send>;

static SOURCE: Mutex<Option<Source>> = Mutex::new(None);

fn source() -> MutexGuard<'static, Option<Source>> {
    SOURCE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The source of answers. Without it, commands fail.
pub struct Telemetry(());

impl Telemetry {
    /// Registers commands, each a name such as `/tally/jobs` and its help. Once in a process.
    ///
    /// # Errors
    ///
    /// [`Error::Call`] if DPDK does not take a command.
    pub fn register(
        _: &Eal,
        commands: &[(&str, &str)],
        answer: impl Fn(&str, &str) -> Option<Answer> + Send + 'static,
    ) -> Result<Self, Error> {
        *source() = Some(Box::new(answer));
        let telemetry = Self(());
        for (name, help) in commands {
            let (command, help) = (c_string(name)?, c_string(help)?);
            // SAFETY: DPDK copies both strings, which end with NUL. The function is there until the
            // process ends. The EAL is alive.
            let ret = unsafe {
                sys::rte_telemetry_register_cmd(command.as_ptr(), Some(reply), help.as_ptr())
            };
            Error::check("rte_telemetry_register_cmd", name, ret)?;
        }
        Ok(telemetry)
    }
}

impl Drop for Telemetry {
    fn drop(&mut self) {
        *source() = None;
    }
}

/// What DPDK calls.
extern "C" fn reply(
    command: *const c_char,
    parameter: *const c_char,
    data: *mut sys::rte_tel_data,
) -> c_int {
    let answered = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: DPDK gives the command as a string that ends with NUL.
        let command = unsafe { text(command) };
        // SAFETY: the same of its parameter, or null.
        let parameter = unsafe { text(parameter) };
        source()
            .as_ref()
            .and_then(|answer| answer(&command, &parameter))
    }));
    match answered {
        // SAFETY: `data` is the reply that DPDK waits for.
        Ok(Some(answer)) => unsafe { fill(data, answer) },
        _ => -1,
    }
}

/// A string of DPDK's; empty if there is none.
///
/// # Safety
///
/// `at` is null, or points to a string that ends with NUL.
unsafe fn text(at: *const c_char) -> String {
    if at.is_null() {
        return String::new();
    }
    // SAFETY: the caller's.
    unsafe { CStr::from_ptr(at) }.to_string_lossy().into_owned()
}

/// Writes an answer.
///
/// # Safety
///
/// `data` is a reply of DPDK's that is empty.
unsafe fn fill(data: *mut sys::rte_tel_data, answer: Answer) -> c_int {
    match answer {
        Answer::Names(names) => {
            // SAFETY: the caller's.
            let ret = unsafe { sys::rte_tel_data_start_array(data, sys::RTE_TEL_STRING_VAL) };
            for name in names.into_iter().filter_map(|name| CString::new(name).ok()) {
                // SAFETY: an array of strings was started; DPDK copies the string, which ends with
                // NUL. A full array refuses it.
                unsafe { sys::rte_tel_data_add_array_string(data, name.as_ptr()) };
            }
            ret
        }
        Answer::Values(values) => {
            // SAFETY: the caller's.
            let ret = unsafe { sys::rte_tel_data_start_dict(data) };
            for (name, value) in values {
                let Ok(name) = CString::new(dpdk_name(&name)) else {
                    continue;
                };
                match value {
                    // SAFETY: a dictionary was started; DPDK copies the name, which ends with NUL.
                    Value::Number(number) => unsafe {
                        sys::tally_telemetry_add_number(data, name.as_ptr(), number);
                    },
                    Value::Text(text) => {
                        let text = CString::new(text).unwrap_or_default();
                        // SAFETY: the same, and of the text too.
                        unsafe {
                            sys::rte_tel_data_add_dict_string(data, name.as_ptr(), text.as_ptr());
                        }
                    }
                }
            }
            ret
        }
    }
}

/// A name of the characters that DPDK takes.
fn dpdk_name(name: &str) -> String {
    let is_taken = |c: &char| c.is_ascii_alphanumeric() || *c == '/';
    name.chars()
        .map(|c| if is_taken(&c) { c } else { '_' })
        .collect()
}
