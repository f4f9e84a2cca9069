//! `whimbrel serve`: where its settings come from. What it then does is in `crate::serve`.

use std::path::PathBuf;
use std::process::ExitCode;

use super::Failure;
use crate::config::{self, Config, Loaded, Sources};

#[derive(Debug, clap::Args)]
pub struct ServeArgs {
    #[command(flatten)]
    config: ConfigArgs,
}

/// The flags that settings are given with; `check` takes the same.
#[derive(Debug, clap::Args)]
pub struct ConfigArgs {
    /// The configuration file [default: whimbrel.toml, where it is there]
    #[arg(long, value_name = "FILE", env = "WHIMBREL_CONFIG")]
    config: Option<PathBuf>,
    /// Where clients connect [default: 127.0.0.1:7600]
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// The folder that everything is kept in [default: ./whimbrel-data]
    #[arg(long, value_name = "DIR")]
    data: Option<String>,
    /// Which roles run in this process, separated by commas [default: all]
    #[arg(long, value_name = "ROLES")]
    roles: Option<String>,
    /// Where the log is kept: embedded or kafka [default: embedded]
    #[arg(long, value_name = "ENGINE")]
    log_engine: Option<String>,
    /// Threads that serve connections [default: as many as cores]
    #[arg(long, value_name = "COUNT")]
    workers: Option<String>,
    /// Serve everybody who can connect, without keys
    #[arg(long)]
    insecure: bool,
    /// Any other setting, as often as needed: --set log.retention=3d
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_and_value)]
    set: Vec<(String, String)>,
}

fn key_and_value(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("write KEY=VALUE, such as log.retention=3d")?;
    Ok((key.trim().to_owned(), value.trim().to_owned()))
}

impl ConfigArgs {
    pub fn load(&self) -> Loaded {
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

    /// The checked configuration, with warnings told on the way, or all that is wrong.
    pub fn resolve(&self) -> Result<Config, Failure> {
        let loaded = self.load();
        for warning in &loaded.findings.warnings {
            eprintln!("warning: {warning}");
        }
        let problems = loaded.findings.problems;
        loaded.config.ok_or_else(|| {
            let hint = "`whimbrel check` shows every setting in force and where it came from";
            match <[String; 1]>::try_from(problems) {
                Ok([only]) => Failure::new(only).with_hint(hint),
                Err(problems) => Failure::new(format!("the configuration has {} problems:", problems.len()))
                    .with_details(problems)
                    .with_hint(hint),
            }
        })
    }
}

pub fn run(args: ServeArgs) -> Result<ExitCode, Failure> {
    crate::serve::run(args.config.resolve()?)
}
