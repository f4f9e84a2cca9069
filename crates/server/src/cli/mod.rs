//! The command line: one definition for flags, help and completions, and one file per command.

mod check;
mod completions;
mod connect;
mod deep_check;
mod error;
mod hold;
mod import;
mod output;
mod people;
mod platform;
mod publish;
mod push;
mod read;
mod serve;
mod stats;
mod sub;
mod tail;
mod terminal;
mod topic;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};

pub use error::CliError;
pub use serve::ConfigArgs;

/// Delivers messages now or later, to services over HTTP and to users' devices.
///
/// Without a command it starts a server with the data folder ./whimbrel-data.
#[derive(Debug, Parser)]
#[command(name = "whimbrel", version, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(flatten)]
    serve: serve::ServeArgs,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the server (the default)
    Serve(serve::ServeArgs),
    /// Publish messages to a topic
    Publish(publish::PublishArgs),
    /// Hold a message: it appears in its topic at its due time
    Hold(hold::HoldArgs),
    /// Change the due time of a hold
    Extend(hold::ExtendArgs),
    /// Withdraw a hold: its message never appears in its topic
    Withdraw(hold::WithdrawArgs),
    /// List, count, show and fire holds
    Holds(hold::HoldsArgs),
    /// Read messages of a topic
    Read(read::ReadArgs),
    /// Follow a topic
    Tail(tail::TailArgs),
    /// List, show, create, alter and delete topics
    Topic(topic::TopicArgs),
    /// Create, list, show, pause, seek and pull from subscriptions
    Sub(sub::SubArgs),
    /// Connect as a device and show its frames
    Connect(terminal::TerminalArgs),
    /// Push a message to a user, or to many
    Push(push::PushArgs),
    /// Show who is online, and where
    Presence(people::PresenceArgs),
    /// End a user's sessions, with a reason
    Kick(people::KickArgs),
    /// Show or empty the inbox of a user
    Inbox(people::InboxArgs),
    /// List, show and configure platforms
    Platform(platform::PlatformArgs),
    /// Register, list and delete devices for notifications
    Device(platform::DeviceArgs),
    /// Create subscriptions from a kafka-pusher's configuration file
    Import(import::ImportArgs),
    /// Show the statistics of a topic, by minute
    Stats(stats::StatsArgs),
    /// Run a benchmark; results are ratios within one run
    Bench(whimbrel_bench::BenchArgs),
    /// Show the effective configuration, its problems, and the state of the data folder; --deep reads every checksum
    Check(check::CheckArgs),
    /// Print completions for a shell
    Completions(completions::CompletionsArgs),
}

/// Runs the command line of this process.
pub fn run() -> ExitCode {
    let cli = Cli::parse();
    let command = cli.command.unwrap_or(Command::Serve(cli.serve));
    let outcome = match command {
        Command::Serve(args) => serve::run(args),
        Command::Publish(args) => publish::run(args),
        Command::Hold(args) => hold::hold(args),
        Command::Extend(args) => hold::extend(args),
        Command::Withdraw(args) => hold::withdraw(args),
        Command::Holds(args) => hold::holds(args),
        Command::Read(args) => read::run(args),
        Command::Tail(args) => tail::run(args),
        Command::Topic(args) => topic::run(args),
        Command::Sub(args) => sub::run(args),
        Command::Connect(args) => terminal::run(args),
        Command::Push(args) => push::run(args),
        Command::Presence(args) => people::presence(args),
        Command::Kick(args) => people::kick(args),
        Command::Inbox(args) => people::inbox(args),
        Command::Platform(args) => platform::platform(args),
        Command::Device(args) => platform::device(args),
        Command::Import(args) => import::run(args),
        Command::Stats(args) => stats::run(args),
        Command::Bench(args) => whimbrel_bench::run(args).map_err(CliError::from),
        Command::Check(args) => check::run(&args),
        Command::Completions(args) => completions::run(&args, &mut Cli::command()),
    };
    outcome.unwrap_or_else(|failure| failure.report())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_of_the_command_line_is_valid() {
        Cli::command().debug_assert();
    }

    #[test]
    fn without_a_command_the_server_starts_with_the_flags_of_serve() {
        let cli = Cli::try_parse_from(["whimbrel", "--listen", "127.0.0.1:1"]).unwrap();
        assert!(cli.command.is_none());
        assert!(Cli::try_parse_from(["whimbrel", "--listen", "127.0.0.1:1", "topic", "list"]).is_err());
    }
}
