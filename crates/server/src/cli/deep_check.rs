//! `whimbrel check --deep`: reads every checksum of the data folder and reports damage by file. It changes no file of the folder, also
//! beside a running server.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use indicatif::{ProgressBar, ProgressStyle};
use whimbrel_engines::deep_check::{CheckProgress, CheckReport, DamageFinding, NotChecked, deep_check};

use super::CliError;
use super::output::print_answer;
use crate::serve::check_clock_note;

/// The exit code if there is no damage, but part of the folder was not checked.
const NOT_ALL_CHECKED: u8 = 3;

pub fn run(data: &Path, json: bool) -> Result<ExitCode, CliError> {
    if !data.is_dir() {
        return Err(CliError::new(format!("{} is not a folder, so it cannot be checked", data.display()))
            .with_hint("set the data folder with --data"));
    }
    // Progress appears on standard error if that is a terminal.
    let bar = ProgressBar::no_length().with_style(style());
    let shown = bar.clone();
    let report = deep_check(
        data,
        Arc::new(move |progress| match progress {
            CheckProgress::Planned(bytes) => shown.set_length(bytes),
            CheckProgress::Read(bytes) => shown.inc(bytes),
        }),
    );
    let bytes = bar.position();
    bar.finish_and_clear();
    let mut report = report.map_err(|error| CliError::new(format!("cannot list {}: {error}", data.display())))?;
    report.files += usize::from(data.join("clock").exists());
    report.add(check_clock_note(data));
    report.findings.sort_by(|a, b| (&a.file, a.position).cmp(&(&b.file, b.position)));
    print_answer(&as_json(data, &report, bytes), json, |_| as_text(data, &report, bytes))?;
    Ok(match report.not_checked.is_empty() {
        _ if report.is_damaged() => ExitCode::FAILURE,
        true => ExitCode::SUCCESS,
        false => ExitCode::from(NOT_ALL_CHECKED),
    })
}

fn style() -> ProgressStyle {
    let template = "{bar:40} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

fn as_text(data: &Path, report: &CheckReport, bytes: u64) -> String {
    let mut text = String::new();
    for DamageFinding { file, position, what, meaning, advice, is_harmless } in &report.findings {
        let word = if *is_harmless { "harmless" } else { "damaged" };
        let file = file.display();
        text.push_str(&format!("{word}: {file} at byte {position}: {what}\n  means: {meaning}\n  do: {advice}\n"));
    }
    for NotChecked { path, why } in &report.not_checked {
        text.push_str(&format!("not checked: {}: {why}\n", path.display()));
    }
    let damaged = report.findings.iter().filter(|finding| !finding.is_harmless).count() + report.unlisted;
    let outcome = match damaged {
        0 => "nothing is damaged".to_owned(),
        1 => "1 place is damaged".to_owned(),
        count => format!("{count} places are damaged"),
    };
    text.push_str(&format!("{}: {} files checked, {bytes} bytes read: {outcome}", data.display(), report.files));
    text
}

fn as_json(data: &Path, report: &CheckReport, bytes: u64) -> serde_json::Value {
    let findings = report.findings.iter().map(|finding| {
        serde_json::json!({
            "file": finding.file.display().to_string(),
            "position": finding.position,
            "what": finding.what,
            "meaning": finding.meaning,
            "advice": finding.advice,
            "harmless": finding.is_harmless,
        })
    });
    let not_checked = report
        .not_checked
        .iter()
        .map(|skipped| serde_json::json!({ "path": skipped.path.display().to_string(), "why": skipped.why }));
    serde_json::json!({
        "data_folder": data.display().to_string(),
        "damaged": report.is_damaged(),
        "files": report.files,
        "bytes": bytes,
        "findings": findings.collect::<Vec<_>>(),
        "unlisted": report.unlisted,
        "not_checked": not_checked.collect::<Vec<_>>(),
    })
}
