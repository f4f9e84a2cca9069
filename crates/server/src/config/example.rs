//! The commented default configuration, generated from the list of settings.

use std::fmt::Write as _;

use super::settings::{SETTINGS, sections};
use super::value::SettingKind;

/// The text of `whimbrel.example.toml`: all settings with their defaults and comments.
pub fn example() -> String {
    let mut text = String::from(
        "# Whimbrel's configuration: every setting with its default. Keep the lines that you change.\n\
         #\n\
         # Whimbrel reads `whimbrel.toml` in the folder that `whimbrel serve` runs in, or the file of `--config FILE`. A variable overrides\n\
         # the file, a flag overrides both: `log.retention` is also WHIMBREL_LOG_RETENTION and `--set log.retention=3d`.\n\
         # Durations: \"250ms\", \"30s\", \"1h30m\", \"7d\". Sizes: \"64KiB\", \"1MiB\", or bytes. `whimbrel check` shows the effective values.\n",
    );
    let mut current = "";
    for setting in SETTINGS {
        let (section, key) = setting.section_and_key();
        // TOML has no notation for an empty array of tables after a section, so `keys` stays a comment.
        let is_comment = matches!(setting.kind, SettingKind::Keys);
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
