//! The calls of an agent that runs, generated from `proto/agent.proto`: both halves.
#![allow(missing_docs, unused_qualifications, clippy::all, clippy::pedantic)]

tonic::include_proto!("tally.agent.v1");
