//! `whimbrel check`: the effective value and source of every setting, and all problems of the configuration and the data folder. It
//! changes nothing, except for `--rebuild`.

use std::path::Path;
use std::process::ExitCode;

use whimbrel_engines::embedded::{OpenError, probe_folder};
use whimbrel_engines::resolve::EngineError;
use whimbrel_engines::store_removal::{RemoveStoreError, remove_holds_store};

use super::connect::converse_with;
use super::output::{print_answer, print_line, table};
use super::{CliError, ConfigArgs, deep_check};
use crate::config::{self, LoadedConfig};

#[derive(Debug, clap::Args)]
pub struct CheckArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Print a commented configuration file with all defaults
    #[arg(long)]
    example: bool,
    /// Remove the store of holds; the next start rebuilds it from the log. Stop every server first
    #[arg(long, conflicts_with = "example")]
    rebuild: bool,
    /// Read every checksum of the log and of the small files, also beside a running server, and report damage
    #[arg(long, conflicts_with_all = ["example", "rebuild"])]
    deep: bool,
    /// Print JSON for programs
    #[arg(long)]
    json: bool,
}

pub fn run(args: &CheckArgs) -> Result<ExitCode, CliError> {
    if args.example {
        print_line(config::example().trim_end())?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.rebuild {
        return rebuild(args);
    }
    if args.deep {
        return deep_check::run(&args.config.resolve()?.process.data, args.json);
    }
    let mut loaded = args.config.load();
    if let Some(config) = &loaded.config {
        // Key files are otherwise read only when the server starts.
        loaded.findings.problems.extend(crate::serve::key_problems(config));
        loaded.findings.problems.extend(crate::serve::kafka_file_problem(config));
    }
    let folder = loaded.config.as_ref().map(|config| DataFolderState::of(&config.process.data));
    print_answer(&as_json(&loaded, folder.as_ref()), args.json, |_| as_table(&loaded, folder.as_ref()))?;
    let is_sound = loaded.findings.problems.is_empty() && folder.is_none_or(|folder| folder.problem.is_none());
    Ok(if is_sound { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Removes the store of holds, and reports the result.
fn rebuild(args: &CheckArgs) -> Result<ExitCode, CliError> {
    let config = args.config.resolve()?;
    let settings = crate::serve::engine_settings(&config)?;
    let removed = converse_with(remove_holds_store(&settings, config::HOLD_SHARDS_MAX))?.map_err(|error| {
        let failure = CliError::new(format!("nothing was removed: {error}"));
        match error {
            RemoveStoreError::InUse(_) | RemoveStoreError::Engine(EngineError::Folder(OpenError::InUse(_))) => {
                failure.with_hint("stop every server that uses it first")
            }
            _ => failure,
        }
    })?;
    let next = "the next start rebuilds it from all records of `_holds` in the log; no hold is lost";
    let answer = serde_json::json!({ "removed": removed.to_string(), "next": next });
    print_answer(&answer, args.json, |_| format!("{removed}\n{next}"))
}

/// The state of a data folder without opening it as a server.
struct DataFolderState {
    description: String,
    /// The reason why a server cannot start on it.
    problem: Option<String>,
}

impl DataFolderState {
    fn of(path: &Path) -> Self {
        let shown = path.display();
        let sound = |description: String| Self { description, problem: None };
        let mut entries = match std::fs::read_dir(path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return sound(format!("{shown} does not exist; the first start creates it"));
            }
            Err(error) => {
                let problem = format!("the data folder {shown} cannot be read: {error}");
                return Self { description: problem.clone(), problem: Some(problem) };
            }
        };
        if entries.next().is_none() {
            return sound(format!("{shown} is empty; the first start fills it"));
        }
        // Probing changes only the lock of a Whimbrel folder. A folder with other files is rejected before any file is created.
        match probe_folder(path) {
            Ok(None) => sound(format!(
                "{shown} is a Whimbrel data folder of this version's format, and not in use; {} bytes",
                bytes_in(path)
            )),
            Ok(Some(damaged)) => sound(damaged),
            Err(OpenError::InUse(_)) => {
                sound(format!("{shown} is in use by a running server; {} bytes", bytes_in(path)))
            }
            Err(error) => Self { description: error.to_string(), problem: Some(error.to_string()) },
        }
    }
}

/// The size of all files below the folder, without unreadable ones.
fn bytes_in(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let of_entry = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => bytes_in(&entry.path()),
        Ok(metadata) => metadata.len(),
        Err(_) => 0,
    };
    entries.map(of_entry).sum()
}

fn as_table(loaded: &LoadedConfig, folder: Option<&DataFolderState>) -> String {
    let mut shown = table(["setting", "value", "source"]);
    for (path, value, source) in loaded.settings.iter() {
        shown.add_row([path, &value.to_toml(), &source.to_string()]);
    }
    let mut text = shown.to_string();
    for warning in &loaded.findings.warnings {
        text.push_str(&format!("\nwarning: {warning}"));
    }
    for problem in &loaded.findings.problems {
        text.push_str(&format!("\nerror: {problem}"));
    }
    if let Some(folder) = folder {
        let word = if folder.problem.is_some() { "error: " } else { "data folder: " };
        text.push_str(&format!("\n{word}{}", folder.description));
    }
    let is_sound = loaded.findings.problems.is_empty() && folder.is_none_or(|folder| folder.problem.is_none());
    text.push_str(if is_sound { "\nno problems found" } else { "\nthe server would not start" });
    text
}

fn as_json(loaded: &LoadedConfig, folder: Option<&DataFolderState>) -> serde_json::Value {
    let settings = loaded.settings.iter().map(|(path, value, source)| {
        serde_json::json!({ "setting": path, "value": value.to_toml(), "source": source.to_string() })
    });
    serde_json::json!({
        "file": loaded.file.as_ref().map(|file| file.display().to_string()),
        "settings": settings.collect::<Vec<_>>(),
        "data_folder": folder.map(|folder| &folder.description),
        "data_folder_problem": folder.and_then(|folder| folder.problem.as_ref()),
        "warnings": loaded.findings.warnings,
        "problems": loaded.findings.problems,
    })
}
