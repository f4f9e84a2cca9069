//! The binary `whimbrel`: the server, its configuration, and the commands that talk to a server.
//!
//! `cli/` has one file per command. `config/` turns files, variables and flags into a typed configuration. `serve/` connects engines,
//! ports and roles, and opens the listeners. The meaning of messages belongs to the roles and the model, not here.

mod cli;
mod config;
mod serve;

#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    cli::run()
}
