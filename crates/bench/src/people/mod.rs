//! `whimbrel bench connect` and `bench push`: the cost of many devices, and the rate and latency of pushes.
//!
//! The devices are a process of this binary, on the same cores as the server: every rate includes their cost.

mod connect;
pub mod crowd;
mod crowd_process;
mod push;
mod token;

pub use connect::connect;
pub use push::push;

use self::crowd_process::CrowdIdentity;
use super::stage::BenchStage;
use crate::{BenchError, StageArgs};

/// A fresh server with a key for device tokens. A running one must accept devices of this machine without tokens.
fn stage(args: &StageArgs, more: &[&str]) -> Result<(BenchStage, CrowdIdentity), BenchError> {
    if args.server.is_some() {
        return Ok((BenchStage::set(args)?, CrowdIdentity::Uid));
    }
    let secret = token::SECRET;
    let mut settings = vec![format!("clients.secret={secret}"), "gateway.accepts_per_second=0".to_owned()];
    settings.extend(more.iter().map(|setting| (*setting).to_owned()));
    settings.extend(args.set.iter().cloned());
    Ok((BenchStage::set(&StageArgs { set: settings, ..args.clone() })?, CrowdIdentity::Token))
}
