//! `whimbrel bench`: rates and latencies of a server, compared with the performance of its device in the same minutes.
//!
//! Absolute results of a shared machine mean little, so each is compared with another of the same run: the device is probed between the
//! rounds, and each measurement alternates with its reference. The servers, devices and endpoints of a benchmark are further processes of
//! the binary that calls [`run`].

mod args;
mod child_server;
mod deliver;
mod device;
mod error;
mod exposition;
mod histogram;
mod hold;
mod load;
mod people;
mod publish;
mod report;
mod stage;
mod wire;

pub use args::{BenchArgs, run};
pub use error::BenchError;

use args::{
    BenchConnectArgs, BenchDeliverArgs, BenchHoldArgs, BenchPublishArgs, BenchPushArgs, BenchRound, DeliverRound,
    HoldRound, PushRound, StageArgs,
};
