//! The structure that ARCHITECTURE.md promises and the way we write, enforced on all sources and
//! docs.

#![allow(clippy::unwrap_used)]

mod circles;
mod files;
mod finding;
mod modules;
mod packages;
mod rust;
mod size;
mod text;
mod width;
mod words;
