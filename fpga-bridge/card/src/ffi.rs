//! The compiled RTL and the C++ that drives its pins (`shim/shim.h`), as a value. All `unsafe` of
//! this package is here.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;
use std::ptr::NonNull;

/// What the RTL was compiled with.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Parameters {
    pub slots: u32,
    pub payload_bytes: u32,
    pub jobs: u32,
    pub members: u32,
    pub ring: u32,
    pub f32: u32,
    pub data_bits: u32,
}

/// `TallyGaps`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Gaps {
    pub input: u8,
    pub output: u8,
    pub longer: u8,
}

/// `TallyStatistics`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Statistics {
    pub cycles: u64,
    pub frames_in: u64,
    pub beats_in: u64,
    pub last_in: u64,
    pub stalls_in: u64,
    pub frames_out: u64,
    pub beats_out: u64,
    pub last_out: u64,
}

type Card = *mut c_void;
type ConstCard = *const c_void;

#[repr(C)]
struct Api {
    parameters: unsafe extern "C" fn() -> Parameters,
    create: unsafe extern "C" fn(u64) -> Card,
    destroy: unsafe extern "C" fn(Card),
    offer: unsafe extern "C" fn(Card, *const u8, usize, u8),
    pending: unsafe extern "C" fn(ConstCard) -> usize,
    next_bytes: unsafe extern "C" fn(ConstCard) -> usize,
    take: unsafe extern "C" fn(Card, *mut u8),
    is_busy: unsafe extern "C" fn(ConstCard) -> bool,
    clock: unsafe extern "C" fn(Card),
    run: unsafe extern "C" fn(Card, u64, u64, bool) -> u64,
    tick: unsafe extern "C" fn(Card, u32),
    read: unsafe extern "C" fn(Card, u16, *mut u32) -> c_int,
    write: unsafe extern "C" fn(Card, u16, u32) -> c_int,
    set_gaps: unsafe extern "C" fn(Card, Gaps, u64),
    statistics: unsafe extern "C" fn(ConstCard) -> Statistics,
    fault: unsafe extern "C" fn(ConstCard) -> *const c_char,
    trace: unsafe extern "C" fn(Card, *const c_char) -> bool,
    write_coverage: unsafe extern "C" fn(Card, *const c_char) -> bool,
}

unsafe extern "C" {
    fn tally_small_api() -> *const Api;
    fn tally_full_api() -> *const Api;
}

/// Which of the compiled models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    Small,
    Full,
}

/// Why a register was not read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BusError {
    Refused,
    Silent,
}

fn answer(code: c_int) -> Result<(), BusError> {
    match code {
        0 => Ok(()),
        1 => Err(BusError::Refused),
        _ => Err(BusError::Silent),
    }
}

/// One model.
pub struct Raw {
    api: &'static Api,
    card: NonNull<c_void>,
}

// SAFETY: a model is C++ objects that are reached through this value only. What the C++ keeps by
// thread, the context of the model, each call sets anew before it is used.
unsafe impl Send for Raw {}

impl Raw {
    /// A model in reset, of which memories and registers without reset begin with values drawn from
    /// `seed`.
    pub fn new(size: Size, seed: u64) -> Self {
        // SAFETY: the two functions return the address of a constant table, which lives as long as
        // the program and has the layout of `Api`, field by field that of `TallyApi`.
        let api = unsafe {
            match size {
                Size::Small => &*tally_small_api(),
                Size::Full => &*tally_full_api(),
            }
        };
        // SAFETY: `create` has no precondition.
        let card = unsafe { (api.create)(seed) };
        let card = NonNull::new(card).expect("`new` of C++ returns no null");
        Self { api, card }
    }

    fn card(&mut self) -> Card {
        self.card.as_ptr()
    }

    fn const_card(&self) -> ConstCard {
        self.card.as_ptr()
    }

    pub fn parameters(&self) -> Parameters {
        // SAFETY: no precondition.
        unsafe { (self.api.parameters)() }
    }

    pub fn offer(&mut self, frame: &[u8], flaw: u8) {
        // SAFETY: `card` is what `create` gave and lives until `drop`, here and below; `frame` is
        // valid for its length and is copied before the call returns.
        unsafe { (self.api.offer)(self.card(), frame.as_ptr(), frame.len(), flaw) }
    }

    pub fn pending(&self) -> usize {
        // SAFETY: as in `offer`; the call only reads.
        unsafe { (self.api.pending)(self.const_card()) }
    }

    pub fn take(&mut self) -> Option<Vec<u8>> {
        // SAFETY: as in `offer`; the call only reads.
        let bytes = unsafe { (self.api.next_bytes)(self.const_card()) };
        if bytes == 0 {
            return None;
        }
        let mut frame = vec![0; bytes];
        // SAFETY: as in `offer`; there is a next frame, as `next_bytes` said, and `frame` has room
        // for it.
        unsafe { (self.api.take)(self.card(), frame.as_mut_ptr()) }
        Some(frame)
    }

    pub fn is_busy(&self) -> bool {
        // SAFETY: as in `offer`; the call only reads.
        unsafe { (self.api.is_busy)(self.const_card()) }
    }

    pub fn clock(&mut self) {
        // SAFETY: as in `offer`.
        unsafe { (self.api.clock)(self.card()) }
    }

    pub fn run(&mut self, limit: u64, frames_in: u64, until_idle: bool) -> u64 {
        // SAFETY: as in `offer`.
        unsafe { (self.api.run)(self.card(), limit, frames_in, until_idle) }
    }

    pub fn tick(&mut self, ticks: u32) {
        // SAFETY: as in `offer`.
        unsafe { (self.api.tick)(self.card(), ticks) }
    }

    pub fn read(&mut self, address: u16) -> Result<u32, BusError> {
        let mut value = 0;
        // SAFETY: as in `offer`; `value` is valid for the one write that the call may make.
        answer(unsafe { (self.api.read)(self.card(), address, &raw mut value) })?;
        Ok(value)
    }

    pub fn write(&mut self, address: u16, value: u32) -> Result<(), BusError> {
        // SAFETY: as in `offer`.
        answer(unsafe { (self.api.write)(self.card(), address, value) })
    }

    pub fn set_gaps(&mut self, gaps: Gaps, seed: u64) {
        // SAFETY: as in `offer`.
        unsafe { (self.api.set_gaps)(self.card(), gaps, seed) }
    }

    pub fn statistics(&self) -> Statistics {
        // SAFETY: as in `offer`; the call only reads.
        unsafe { (self.api.statistics)(self.const_card()) }
    }

    pub fn fault(&self) -> Option<String> {
        // SAFETY: as in `offer`; the call only reads.
        let text = unsafe { (self.api.fault)(self.const_card()) };
        if text.is_null() {
            return None;
        }
        // SAFETY: not null, so a C string that nothing changes while `self` is borrowed.
        let text = unsafe { CStr::from_ptr(text) };
        Some(text.to_string_lossy().into_owned())
    }

    pub fn trace(&mut self, path: &Path) -> bool {
        let Some(path) = c_path(path) else {
            return false;
        };
        // SAFETY: as in `offer`; `path` is a C string that lives longer than the call.
        unsafe { (self.api.trace)(self.card(), path.as_ptr()) }
    }

    pub fn write_coverage(&mut self, path: &Path) -> bool {
        let Some(path) = c_path(path) else {
            return false;
        };
        // SAFETY: as in `trace`.
        unsafe { (self.api.write_coverage)(self.card(), path.as_ptr()) }
    }
}

fn c_path(path: &Path) -> Option<CString> {
    CString::new(path.as_os_str().as_encoded_bytes()).ok()
}

impl Drop for Raw {
    fn drop(&mut self) {
        // SAFETY: `card` is what `create` gave, and nothing uses it after this.
        unsafe { (self.api.destroy)(self.card()) }
    }
}
