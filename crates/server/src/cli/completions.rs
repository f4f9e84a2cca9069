//! `whimbrel completions`: what a shell needs to complete commands and flags, made from their definition.

use std::process::ExitCode;

use super::Failure;
use super::output::print_bytes;

#[derive(Debug, clap::Args)]
pub struct CompletionsArgs {
    /// The shell
    shell: clap_complete::Shell,
}

pub fn run(args: &CompletionsArgs, command: &mut clap::Command) -> Result<ExitCode, Failure> {
    // Into memory first: `generate` panics where its writer fails, as a closed pipe does.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, command, "whimbrel", &mut script);
    print_bytes(&script)?;
    Ok(ExitCode::SUCCESS)
}
