//! The commented default configuration, generated from the list of settings.

use std::fmt::Write as _;

use super::settings::SECTIONS;
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
    for section in SECTIONS {
        for (index, setting) in section.settings.iter().enumerate() {
            text.push('\n');
            if index == 0 && !section.name.is_empty() {
                push_comment(&mut text, section.text);
                let _ = writeln!(text, "[{}]", section.name);
            }
            push_comment(&mut text, setting.text);
            // TOML has no notation for an empty array of tables after a section, so `keys` stays a comment.
            if !matches!(setting.kind, SettingKind::Keys) {
                let (_, key) = setting.section_and_key();
                let _ = writeln!(text, "{key} = {}", setting.default_value().to_toml());
            }
        }
    }
    text
}

/// Appends the lines of a declaration's text, without the space with which a doc comment begins.
fn push_comment(text: &mut String, comment: &str) {
    for line in comment.lines() {
        let line = line.strip_prefix(' ').unwrap_or(line);
        text.push_str(if line.is_empty() { "#" } else { "# " });
        text.push_str(line);
        text.push('\n');
    }
}
