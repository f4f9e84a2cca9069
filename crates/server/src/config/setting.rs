//! What a setting is: its name, what it takes, its default, what it means. Which there are is in `settings.rs`.

use std::time::Duration;

use super::value::{Kind, Value};

/// One setting. `path` is `key`, `section.key` or `section.part.key`.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    pub path: &'static str,
    pub kind: Kind,
    pub default: Given,
    pub meaning: &'static str,
}

/// A default, as it is best written in the list.
#[derive(Debug, Clone, Copy)]
pub enum Given {
    Text(&'static str),
    Count(u64),
    Bytes(u64),
    Millis(u64),
}

pub const fn setting(path: &'static str, kind: Kind, default: Given, meaning: &'static str) -> Setting {
    Setting { path, kind, default, meaning }
}

pub const fn count(min: u64, max: u64) -> Kind {
    Kind::Count { min, max, or: None }
}

pub const fn bytes(min: u64, max: u64) -> Kind {
    Kind::Bytes { min, max, or: None }
}

pub const fn duration(min: Duration, max: Duration) -> Kind {
    Kind::Duration { min, max, or: None }
}

impl Setting {
    pub fn default_value(&self) -> Value {
        match self.default {
            Given::Count(count) => Value::Count(count),
            Given::Bytes(bytes) => Value::Bytes(bytes),
            Given::Millis(millis) => Value::Duration(Duration::from_millis(millis)),
            // A default that its own kind refuses is a mistake in this file, which a test finds.
            Given::Text(text) => self.kind.read_text(text).expect("a setting takes its own default"),
        }
    }

    /// The section, empty for keys without one, and the key in it.
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
