//! Output of answers: tables for people, JSON for programs.

use std::io::{BufRead as _, ErrorKind, IsTerminal as _, Write as _};
use std::process::ExitCode;

use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;
use serde_json::{Map, Value};
use whimbrel_client::Message;

use super::CliError;

/// Asks on a terminal whether to delete `name` with what belongs to it, unless `--yes` was given. Fails without a confirmation.
pub fn confirm_deletion(name: &str, parts: &str, yes: bool) -> Result<(), CliError> {
    if yes {
        return Ok(());
    }
    if std::io::stdin().is_terminal() {
        let mut answer = String::new();
        eprint!("Delete `{name}` and {parts}? Type its name: ");
        std::io::stderr().flush()?;
        std::io::stdin().lock().read_line(&mut answer)?;
        if answer.trim() == name {
            return Ok(());
        }
    }
    let refused = CliError::new(format!("`{name}` was not deleted: the deletion was not confirmed"));
    Err(refused.with_hint("pass --yes to delete without confirmation"))
}

/// An empty table with these headings.
pub fn table<const COLUMNS: usize>(headings: [&str; COLUMNS]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_FULL_CONDENSED).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(headings);
    table
}

/// The members of an answer, for tables that show all of them.
pub fn members(answer: &impl Serialize) -> Map<String, Value> {
    match serde_json::to_value(answer) {
        Ok(Value::Object(members)) => members,
        _ => Map::new(),
    }
}

/// A value without the quotes of a text.
pub fn text_of(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Prints an answer: as JSON for programs, or as a text for people.
pub fn print_answer<T: Serialize + ?Sized>(
    answer: &T,
    json: bool,
    text: impl FnOnce(&T) -> String,
) -> Result<ExitCode, CliError> {
    if json {
        print_json(answer)?;
    } else {
        print_line(&text(answer))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints several answers: a line of JSON for each, or one text for all.
pub fn print_answers<T: Serialize>(
    answers: &[T],
    json: bool,
    text: impl FnOnce(&[T]) -> String,
) -> Result<ExitCode, CliError> {
    if json {
        answers.iter().try_for_each(print_json)?;
    } else {
        print_line(&text(answers))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints one line of JSON.
pub fn print_json(value: &(impl Serialize + ?Sized)) -> Result<(), CliError> {
    let mut line = serde_json::to_vec(value).map_err(|error| CliError::new(error.to_string()))?;
    line.push(b'\n');
    print_bytes(&line)
}

/// Prints a line. If the reader has closed the pipe, the failure ends the command quietly.
pub fn print_line(text: &str) -> Result<(), CliError> {
    print_bytes(format!("{text}\n").as_bytes())
}

/// Prints raw bytes; see [`print_line`].
pub fn print_bytes(bytes: &[u8]) -> Result<(), CliError> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(bytes).and_then(|()| stdout.flush()).map_err(|error| match error.kind() {
        ErrorKind::BrokenPipe => CliError::closed_pipe(),
        _ => CliError::new(format!("cannot write to stdout: {error}")),
    })
}

/// The last line of a page that another one follows.
pub fn more_after(cursor: Option<&String>) -> Option<String> {
    cursor.map(|cursor| format!("there are more: continue with --cursor {cursor}"))
}

/// The payload in printable form: text without control characters, shortened; otherwise its size.
pub fn shown_payload(message: &Message, chars_max: usize) -> String {
    match &message.payload {
        Some(text) => {
            let plain = text.chars().map(|c| if c.is_control() { ' ' } else { c });
            let mut shown: String = plain.take(chars_max).collect();
            if text.chars().count() > chars_max {
                shown.push('…');
            }
            shown
        }
        None => format!("<{} bytes>", message.bytes().map_or(0, |bytes| bytes.len())),
    }
}
