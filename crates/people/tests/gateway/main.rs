//! The gateway over real sockets, with carriers and presence that the test plays itself.

mod footprint;
mod foreign;
mod owners;
mod scene;
mod slow;
mod socket;
mod streams;
mod tokens;
