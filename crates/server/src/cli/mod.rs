//! The command line: one definition that drives flags, help and completions, and one file per command.

mod bench;
mod check;
mod completions;
mod connect;
mod deep_check;
mod failure;
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

pub use bench::{
    BenchConnectArgs, BenchDeliverArgs, BenchHoldArgs, BenchPublishArgs, BenchPushArgs, BenchRound, DeliverRound,
    HoldRound, PushRound, StageArgs,
};
pub use failure::Failure;
pub use output::{print_json, print_line, table};
pub use serve::ConfigArgs;

/// Delivers messages now and later, to services over HTTP and to people on their devices.
///
/// Without a command it serves, with what is kept in ./whimbrel-data.
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
    /// Hold a message: it stands in its topic when it is due
    Hold(hold::HoldArgs),
    /// Give a hold another due time
    Extend(hold::ExtendArgs),
    /// Take a hold back: its message never reaches its topic
    Withdraw(hold::WithdrawArgs),
    /// List, count, show and fire holds
    Holds(hold::HoldsArgs),
    /// Read messages of a topic
    Read(read::ReadArgs),
    /// Follow a topic as messages come
    Tail(tail::TailArgs),
    /// List, show, create, alter and delete topics
    Topic(topic::TopicArgs),
    /// Make, list, show, stop, move and pull from subscriptions
    Sub(sub::SubArgs),
    /// Connect as a device and show what comes
    Connect(terminal::TerminalArgs),
    /// Push a message to a user, or to many
    Push(push::PushArgs),
    /// Show who is online, and where
    Presence(people::PresenceArgs),
    /// End a user's sessions, with a reason
    Kick(people::KickArgs),
    /// Show or empty what is stored for a user
    Inbox(people::InboxArgs),
    /// List, show and say what platforms keep
    Platform(platform::PlatformArgs),
    /// Register, list and forget where notices for devices go
    Device(platform::DeviceArgs),
    /// Make subscriptions of a kafka-pusher's configuration file
    Import(import::ImportArgs),
    /// Show what happened to a topic, minute by minute
    Stats(stats::StatsArgs),
    /// Measure a server beside its device, as ratios within one run
    Bench(bench::BenchArgs),
    /// Show the configuration in force, what is wrong with it, and the state of the data folder; --deep reads every checksum
    Check(check::CheckArgs),
    /// Print completions for a shell
    Completions(completions::CompletionsArgs),
}

/// Runs what the command line says.
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
        Command::Bench(args) => bench::run(args),
        Command::Check(args) => check::run(&args),
        Command::Completions(args) => completions::run(&args, &mut Cli::command()),
    };
    outcome.unwrap_or_else(|failure| failure.report())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_of_the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn without_a_command_it_serves_with_the_flags_of_serve() {
        let cli = Cli::try_parse_from(["whimbrel", "--listen", "127.0.0.1:1"]).unwrap();
        assert!(cli.command.is_none());
        assert!(Cli::try_parse_from(["whimbrel", "--listen", "127.0.0.1:1", "topic", "list"]).is_err());
    }
}
