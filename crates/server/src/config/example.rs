//! The commented default configuration, written from the list of settings.

use std::fmt::Write as _;

use super::settings::{SETTINGS, sections};
use super::value::Kind;

/// The whole default configuration with its comments: the text of `whimbrel.example.toml`.
pub fn example() -> String {
    let mut text = String::from(
        "# Whimbrel's configuration: every setting with its default. Keep the lines that you change.\n\
         #\n\
         # It is read from `whimbrel.toml` in the folder that `whimbrel serve` runs in, or from `--config FILE`. A variable goes before\n\
         # the file, a flag before both: `log.retention` is also WHIMBREL_LOG_RETENTION and `--set log.retention=3d`.\n\
         # Durations: \"250ms\", \"30s\", \"1h30m\", \"7d\". Sizes: \"64KiB\", \"1MiB\", or bytes. `whimbrel check` shows what is in force.\n",
    );
    let mut current = "";
    for setting in SETTINGS {
        let (section, key) = setting.section_and_key();
        // An empty list of tables cannot be written behind a section, so the keys stay a comment.
        let is_comment = matches!(setting.kind, Kind::Keys);
        text.push('\n');
        if section != current && !is_comment {
            current = section;
            let meaning = sections().find(|(name, _)| *name == section).map_or("", |(_, meaning)| meaning);
            let _ = write!(text, "# {meaning}\n[{section}]\n");
        }
        for line in setting.meaning.lines() {
            text.push_str(if line.is_empty() { "#" } else { "# " });
            text.push_str(line);
            text.push('\n');
        }
        if !is_comment {
            let _ = writeln!(text, "{key} = {}", setting.default_value().to_toml());
        }
    }
    text
}
