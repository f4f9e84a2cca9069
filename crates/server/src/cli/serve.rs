//! `whimbrel serve`: the configuration flags. `crate::serve` is the server.

use std::path::PathBuf;
use std::process::ExitCode;

use super::CliError;
use crate::config::{self, Config, LoadedConfig, Sources};

#[derive(Debug, clap::Args)]
pub struct ServeArgs {
    #[command(flatten)]
    config: ConfigArgs,
}

/// The configuration flags of `serve` and `check`.
#[derive(Debug, clap::Args)]
pub struct ConfigArgs {
    /// The configuration file [default: whimbrel.toml, if it exists]
    #[arg(long, value_name = "FILE", env = "WHIMBREL_CONFIG")]
    config: Option<PathBuf>,
    /// Address for clients [default: 127.0.0.1:7600]
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// The data folder [default: ./whimbrel-data]
    #[arg(long, value_name = "DIR")]
    data: Option<String>,
    /// Roles of this node, separated by commas [default: all]
    #[arg(long, value_name = "ROLES")]
    roles: Option<String>,
    /// Where the log is: embedded or kafka [default: embedded]
    #[arg(long, value_name = "ENGINE")]
    log_engine: Option<String>,
    /// Threads that serve connections [default: one for each CPU core]
    #[arg(long, value_name = "COUNT")]
    workers: Option<String>,
    /// Permit public addresses without API keys (disables authentication)
    #[arg(long)]
    insecure: bool,
    /// Any other setting, as often as needed: --set log.retention=3d
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_and_value)]
    set: Vec<(String, String)>,
}

fn key_and_value(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("expected KEY=VALUE, such as log.retention=3d")?;
    Ok((key.trim().to_owned(), value.trim().to_owned()))
}

impl ConfigArgs {
    pub fn load(&self) -> LoadedConfig {
        let named = [
            ("listen", "--listen", &self.listen),
            ("data", "--data", &self.data),
            ("roles", "--roles", &self.roles),
            ("log.engine", "--log-engine", &self.log_engine),
            ("workers", "--workers", &self.workers),
        ];
        let mut flags: Vec<(String, String, String)> =
            self.set.iter().map(|(key, value)| (key.clone(), value.clone(), format!("--set {key}"))).collect();
        for (path, flag, text) in named {
            if let Some(text) = text {
                flags.push((path.into(), text.clone(), flag.into()));
            }
        }
        if self.insecure {
            flags.push(("insecure".into(), "true".into(), "--insecure".into()));
        }
        let variables = std::env::vars_os()
            .filter_map(|(name, text)| Some((name.into_string().ok()?, text.into_string().ok()?)))
            .collect();
        config::load(&Sources { file: self.config.clone(), variables, flags })
    }

    /// The configuration, with its warnings printed, or all of its problems.
    pub fn resolve(&self) -> Result<Config, CliError> {
        let loaded = self.load();
        for warning in &loaded.findings.warnings {
            eprintln!("warning: {warning}");
        }
        let problems = loaded.findings.problems;
        loaded.config.ok_or_else(|| {
            let hint = "`whimbrel check` shows the effective value and source of every setting";
            match <[String; 1]>::try_from(problems) {
                Ok([only]) => CliError::new(only).with_hint(hint),
                Err(problems) => CliError::new(format!("the configuration has {} problems:", problems.len()))
                    .with_details(problems)
                    .with_hint(hint),
            }
        })
    }
}

pub fn run(args: ServeArgs) -> Result<ExitCode, CliError> {
    crate::serve::run(args.config.resolve()?)
}
