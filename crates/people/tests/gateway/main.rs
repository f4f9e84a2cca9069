//! Tests of the gateway over real sockets, with fake carriers and a fake presence reporter.

mod footprint;
mod foreign;
mod owners;
mod scene;
mod slow;
mod socket;
mod streams;
mod tokens;
