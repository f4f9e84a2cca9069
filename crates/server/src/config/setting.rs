//! The definition of a setting: its name, kind, default and meaning. `settings.rs` has the list of all settings.

use std::time::Duration;

use super::value::{SettingKind, SettingValue};

/// One setting. `path` is `key`, `section.key` or `section.part.key`.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    pub path: &'static str,
    pub kind: SettingKind,
    pub default: SettingDefault,
    pub meaning: &'static str,
}

/// The default of a setting, in the form that is shortest in the list.
#[derive(Debug, Clone, Copy)]
pub enum SettingDefault {
    Text(&'static str),
    Count(u64),
    Bytes(u64),
    Millis(u64),
}

pub const fn setting(path: &'static str, kind: SettingKind, default: SettingDefault, meaning: &'static str) -> Setting {
    Setting { path, kind, default, meaning }
}

pub const fn count(min: u64, max: u64) -> SettingKind {
    SettingKind::Count { min, max, or: None }
}

pub const fn bytes(min: u64, max: u64) -> SettingKind {
    SettingKind::Bytes { min, max, or: None }
}

pub const fn duration(min: Duration, max: Duration) -> SettingKind {
    SettingKind::Duration { min, max, or: None }
}

impl Setting {
    pub fn default_value(&self) -> SettingValue {
        match self.default {
            SettingDefault::Count(count) => SettingValue::Count(count),
            SettingDefault::Bytes(bytes) => SettingValue::Bytes(bytes),
            SettingDefault::Millis(millis) => SettingValue::Duration(Duration::from_millis(millis)),
            // A default that its own kind rejects is a bug in the list, which a test finds.
            SettingDefault::Text(text) => self.kind.read_text(text).expect("a setting accepts its own default"),
        }
    }

    /// The section (empty for keys outside a section) and the key in it.
    pub fn section_and_key(&self) -> (&'static str, &'static str) {
        self.path.rsplit_once('.').unwrap_or(("", self.path))
    }

    pub fn variable(&self) -> String {
        variable_of(self.path)
    }
}

/// `WHIMBREL_LOG_ENGINE` for `log.engine`.
pub fn variable_of(path: &str) -> String {
    format!("WHIMBREL_{}", path.replace('.', "_").to_uppercase())
}
