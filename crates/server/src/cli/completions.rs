//! `whimbrel completions`: shell completions, generated from the definition of the command line.

use std::process::ExitCode;

use super::CliError;
use super::output::print_bytes;

#[derive(Debug, clap::Args)]
pub struct CompletionsArgs {
    /// The shell
    shell: clap_complete::Shell,
}

pub fn run(args: &CompletionsArgs, command: &mut clap::Command) -> Result<ExitCode, CliError> {
    // Into memory first: `generate` panics if its writer fails, for example on a closed pipe.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, command, "whimbrel", &mut script);
    print_bytes(&script)?;
    Ok(ExitCode::SUCCESS)
}
