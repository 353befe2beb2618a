//! The calls of SwitchML's clients, generated from `proto/switchml.proto`: both halves, so that
//! tests and load generators are clients of the same text.
#![allow(missing_docs, unused_qualifications, clippy::all, clippy::pedantic)]

tonic::include_proto!("switchml_proto");
