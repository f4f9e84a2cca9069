//! `whimbrel check`: every setting in force with its source, and everything that is wrong.

use std::process::ExitCode;

use super::output::{print_json, print_line, table};
use super::{ConfigArgs, Failure};
use crate::config::{self, Loaded};

#[derive(Debug, clap::Args)]
pub struct CheckArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Print the commented default configuration instead: a file to begin with
    #[arg(long)]
    example: bool,
    /// Print JSON for programs
    #[arg(long)]
    json: bool,
}

pub fn run(args: &CheckArgs) -> Result<ExitCode, Failure> {
    if args.example {
        print_line(config::example().trim_end())?;
        return Ok(ExitCode::SUCCESS);
    }
    let loaded = args.config.load();
    if args.json {
        print_json(&as_json(&loaded))?;
    } else {
        print_line(&as_table(&loaded))?;
    }
    Ok(if loaded.findings.problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn as_table(loaded: &Loaded) -> String {
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
    text.push_str(match loaded.findings.problems.len() {
        0 => "\nnothing is wrong with the configuration",
        _ => "\nthe server would not start",
    });
    text
}

fn as_json(loaded: &Loaded) -> serde_json::Value {
    let settings = loaded.settings.iter().map(|(path, value, source)| {
        serde_json::json!({ "setting": path, "value": value.to_toml(), "source": source.to_string() })
    });
    serde_json::json!({
        "file": loaded.file.as_ref().map(|file| file.display().to_string()),
        "settings": settings.collect::<Vec<_>>(),
        "warnings": loaded.findings.warnings,
        "problems": loaded.findings.problems,
    })
}
