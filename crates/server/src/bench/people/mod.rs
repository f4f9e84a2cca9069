//! `whimbrel bench connect` and `bench push`: what many devices cost, and how fast and how soon people are reached.
//!
//! The devices are a process of this same binary, on the same cores as the server: what it costs to be them is in every rate.

mod connect;
pub mod crowd;
mod crowd_process;
mod push;
mod token;

pub use connect::connect;
pub use push::push;

use self::crowd_process::Identity;
use super::stage::Stage;
use crate::cli::{Failure, StageArgs};

/// A fresh server with a key for devices' tokens; a running one is one that takes devices of this machine at their word.
fn stage(args: &StageArgs, more: &[&str]) -> Result<(Stage, Identity), Failure> {
    if args.server.is_some() {
        return Ok((Stage::set(args)?, Identity::Uid));
    }
    let secret = token::SECRET;
    let mut settings = vec![format!("clients.secret={secret}"), "gateway.accepts_per_second=0".to_owned()];
    settings.extend(more.iter().map(|setting| (*setting).to_owned()));
    settings.extend(args.set.iter().cloned());
    Ok((Stage::set(&StageArgs { set: settings, ..args.clone() })?, Identity::Token))
}
