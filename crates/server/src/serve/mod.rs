//! placeholder
mod banner;
mod listen;
mod telemetry;
use crate::cli::Failure;
use crate::config::Config;
use std::process::ExitCode;
pub fn run(_config: Config) -> Result<ExitCode, Failure> {
    Err(Failure::new("not yet"))
}
