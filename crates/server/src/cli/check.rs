//! `whimbrel check`: every setting in force with its source, and everything that is wrong, with the data folder too. It changes nothing,
//! unless it is told to have the store of holds rebuilt.

use std::path::Path;
use std::process::ExitCode;

use whimbrel_engines::embedded::{OpenError, probe_folder};
use whimbrel_engines::rebuild::{ForgetError, forget_holds};
use whimbrel_engines::resolve::EngineError;

use super::connect::converse_with;
use super::output::{print_json, print_line, table};
use super::{ConfigArgs, Failure, deep_check};
use crate::config::{self, Loaded};

#[derive(Debug, clap::Args)]
pub struct CheckArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Print the commented default configuration instead: a file to begin with
    #[arg(long)]
    example: bool,
    /// Remove the store of holds, with every server stopped: the next start builds it again from the log
    #[arg(long, conflicts_with = "example")]
    rebuild: bool,
    /// Read every checksum of the log and of the small files, also beside a running server, and report what is damaged
    #[arg(long, conflicts_with_all = ["example", "rebuild"])]
    deep: bool,
    /// Print JSON for programs
    #[arg(long)]
    json: bool,
}

pub fn run(args: &CheckArgs) -> Result<ExitCode, Failure> {
    if args.example {
        print_line(config::example().trim_end())?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.rebuild {
        return rebuild(args);
    }
    if args.deep {
        return deep_check::run(&args.config.resolve()?.data, args.json);
    }
    let mut loaded = args.config.load();
    if let Some(config) = &loaded.config {
        // What a file says is not looked at before a start needs it.
        loaded.findings.problems.extend(crate::serve::key_problems(config));
        loaded.findings.problems.extend(crate::serve::kafka_file_problem(config));
    }
    let folder = loaded.config.as_ref().map(|config| FolderState::of(&config.data));
    if args.json {
        print_json(&as_json(&loaded, folder.as_ref()))?;
    } else {
        print_line(&as_table(&loaded, folder.as_ref()))?;
    }
    let is_sound = loaded.findings.problems.is_empty() && folder.is_none_or(|folder| folder.problem.is_none());
    Ok(if is_sound { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Removes the store of holds, and says what it did.
fn rebuild(args: &CheckArgs) -> Result<ExitCode, Failure> {
    let config = args.config.resolve()?;
    let settings = crate::serve::engine_settings(&config)?;
    let removed = converse_with(forget_holds(&settings, config::HOLD_SHARDS_MAX))?.map_err(|error| {
        let failure = Failure::new(format!("nothing was removed: {error}"));
        match error {
            ForgetError::InUse(_) | ForgetError::Engine(EngineError::Folder(OpenError::InUse(_))) => {
                failure.with_hint("end every server that uses it first")
            }
            _ => failure,
        }
    })?;
    let next = "the next start folds every record of `_holds` that the log keeps; nothing that was accepted is lost";
    if args.json {
        print_json(&serde_json::json!({ "removed": removed.to_string(), "next": next }))?;
    } else {
        print_line(&format!("{removed}\n{next}"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What can be said of a data folder from outside.
struct FolderState {
    said: String,
    /// Why a server could not start on it.
    problem: Option<String>,
}

impl FolderState {
    fn of(path: &Path) -> Self {
        let shown = path.display();
        let sound = |said: String| Self { said, problem: None };
        let mut entries = match std::fs::read_dir(path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return sound(format!("{shown} is not there yet; the first start makes it"));
            }
            Err(error) => {
                let problem = format!("the data folder {shown} cannot be read: {error}");
                return Self { said: problem.clone(), problem: Some(problem) };
            }
        };
        if entries.next().is_none() {
            return sound(format!("{shown} is empty; the first start fills it"));
        }
        // Probing a folder that is ours changes nothing but its lock; one that is not ours is refused before anything is made.
        match probe_folder(path) {
            Ok(None) => sound(format!("{shown} is ours, of this version's format, and free; {} bytes", bytes_in(path))),
            Ok(Some(damaged)) => sound(damaged),
            Err(OpenError::InUse(_)) => {
                sound(format!("{shown} is in use by a running server; {} bytes", bytes_in(path)))
            }
            Err(error) => Self { said: error.to_string(), problem: Some(error.to_string()) },
        }
    }
}

/// Bytes of all files below; what cannot be read is not counted.
fn bytes_in(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let of_entry = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => bytes_in(&entry.path()),
        Ok(metadata) => metadata.len(),
        Err(_) => 0,
    };
    entries.map(of_entry).sum()
}

fn as_table(loaded: &Loaded, folder: Option<&FolderState>) -> String {
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
        text.push_str(&format!("\n{word}{}", folder.said));
    }
    let is_sound = loaded.findings.problems.is_empty() && folder.is_none_or(|folder| folder.problem.is_none());
    text.push_str(if is_sound { "\nnothing is wrong" } else { "\nthe server would not start" });
    text
}

fn as_json(loaded: &Loaded, folder: Option<&FolderState>) -> serde_json::Value {
    let settings = loaded.settings.iter().map(|(path, value, source)| {
        serde_json::json!({ "setting": path, "value": value.to_toml(), "source": source.to_string() })
    });
    serde_json::json!({
        "file": loaded.file.as_ref().map(|file| file.display().to_string()),
        "settings": settings.collect::<Vec<_>>(),
        "data_folder": folder.map(|folder| &folder.said),
        "data_folder_problem": folder.and_then(|folder| folder.problem.as_ref()),
        "warnings": loaded.findings.warnings,
        "problems": loaded.findings.problems,
    })
}
