//! `whimbrel completions`: what a shell needs to complete commands and flags, made from their definition.

use std::process::ExitCode;

use super::Failure;

#[derive(Debug, clap::Args)]
pub struct CompletionsArgs {
    /// The shell
    shell: clap_complete::Shell,
}

pub fn run(args: &CompletionsArgs, command: &mut clap::Command) -> Result<ExitCode, Failure> {
    clap_complete::generate(args.shell, command, "whimbrel", &mut std::io::stdout());
    Ok(ExitCode::SUCCESS)
}
