//! The binary `whimbrel`: the server, its configuration, and the commands that talk to a server.
//!
//! `cli/` has one file per command, `config/` turns files, variables and flags into one checked form, `serve/` wires engines to
//! ports to roles and listens, `bench/` measures. Nothing here decides what a message is: that is the roles' and the model's.

mod bench;
mod cli;
mod config;
mod serve;

#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    cli::run()
}
