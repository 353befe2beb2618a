//! The calls, generated from `proto/control.proto`: both halves.
#![allow(missing_docs, unused_qualifications, clippy::all, clippy::pedantic)]

tonic::include_proto!("tally.control.v1");
