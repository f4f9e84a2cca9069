//! The kinds of settings: how each is read from a file, a variable or a flag, and how it is written. Reading validates a single value;
//! `validation.rs` validates settings against each other.

use std::fmt::{self, Write as _};
use std::net::SocketAddr;
use std::time::Duration;

use toml::de::DeValue;
use whimbrel_model::{format_duration, parse_duration};

use super::keys::{self, KeyEntry};

/// The type and range of a setting. `or` is a word for "none" or "automatic".
#[derive(Debug, Clone, Copy)]
pub enum SettingKind {
    Flag,
    Address,
    Text,
    /// A text that is never printed.
    Secret,
    Count {
        min: u64,
        max: u64,
        or: Option<&'static str>,
    },
    Duration {
        min: Duration,
        max: Duration,
        or: Option<&'static str>,
    },
    Bytes {
        min: u64,
        max: u64,
        or: Option<&'static str>,
    },
    OneOf(&'static [&'static str]),
    SomeOf(&'static [&'static str]),
    Keys,
}

#[derive(Clone, PartialEq, Eq)]
pub enum SettingValue {
    Flag(bool),
    Address(SocketAddr),
    Text(String),
    Secret(String),
    Count(u64),
    Duration(Duration),
    Bytes(u64),
    Left(&'static str),
    Words(Vec<String>),
    Keys(Vec<KeyEntry>),
}

impl SettingKind {
    /// The kind with a word for "none" or "automatic". Only numbers, durations and sizes have one.
    pub const fn or(self, word: &'static str) -> Self {
        let or = Some(word);
        match self {
            Self::Count { min, max, .. } => Self::Count { min, max, or },
            Self::Duration { min, max, .. } => Self::Duration { min, max, or },
            Self::Bytes { min, max, .. } => Self::Bytes { min, max, or },
            other => other,
        }
    }

    /// Parses the text of a variable or flag.
    pub fn read_text(&self, text: &str) -> Result<SettingValue, String> {
        match self {
            Self::Count { or: Some(word), .. }
            | Self::Duration { or: Some(word), .. }
            | Self::Bytes { or: Some(word), .. }
                if *word == text =>
            {
                Ok(SettingValue::Left(word))
            }
            Self::Flag => match text.trim() {
                "true" | "1" | "yes" | "on" => Ok(SettingValue::Flag(true)),
                "false" | "0" | "no" | "off" => Ok(SettingValue::Flag(false)),
                _ => Err(self.invalid(text)),
            },
            Self::Address => text.trim().parse().map(SettingValue::Address).map_err(|_| self.invalid(text)),
            Self::Text => Ok(SettingValue::Text(text.to_owned())),
            Self::Secret => Ok(SettingValue::Secret(text.to_owned())),
            Self::Count { min, max, .. } => {
                let count = text.trim().replace('_', "").parse().map_err(|_| self.invalid(text))?;
                self.within(count, *min, *max, text).map(SettingValue::Count)
            }
            Self::Duration { min, max, .. } => {
                let duration = parse_duration(text.trim()).map_err(|error| error.to_string())?;
                let invalid = || self.invalid(text);
                (*min..=*max).contains(&duration).then_some(SettingValue::Duration(duration)).ok_or_else(invalid)
            }
            Self::Bytes { min, max, .. } => {
                let bytes = parse_bytes(text.trim()).ok_or_else(|| self.invalid(text))?;
                self.within(bytes, *min, *max, text).map(SettingValue::Bytes)
            }
            Self::OneOf(words) => {
                let known = words.contains(&text.trim());
                known.then(|| SettingValue::Text(text.trim().to_owned())).ok_or_else(|| self.invalid(text))
            }
            Self::SomeOf(_) => self.read_words(text.split(',').map(|word| word.trim().to_owned()).collect()),
            Self::Keys => {
                let parsed =
                    DeValue::parse(text).map_err(|error| format!("expected {}: {}", self.takes(), error.message()))?;
                self.read_toml(parsed.get_ref())
            }
        }
    }

    /// Parses a value of a TOML file.
    pub fn read_toml(&self, value: &DeValue<'_>) -> Result<SettingValue, String> {
        let wrong_type = || format!("{} is not valid: expected {}", described(value), self.takes());
        match (self, value) {
            (Self::Flag, DeValue::Boolean(flag)) => Ok(SettingValue::Flag(*flag)),
            (Self::Flag, _) => Err(wrong_type()),
            (Self::SomeOf(_), DeValue::Array(words)) => {
                let words: Option<Vec<_>> =
                    words.iter().map(|word| word.get_ref().as_str().map(str::to_owned)).collect();
                self.read_words(words.ok_or_else(wrong_type)?)
            }
            (Self::Keys, DeValue::Array(entries)) => keys::read(entries).map(SettingValue::Keys),
            (Self::Keys, _) => Err(wrong_type()),
            (Self::Count { .. } | Self::Duration { .. } | Self::Bytes { .. }, DeValue::Integer(number)) => {
                let decimal = i128::from_str_radix(number.as_str(), number.radix()).map_err(|_| wrong_type())?;
                self.read_text(&decimal.to_string())
            }
            (_, DeValue::String(text)) => self.read_text(text),
            _ => Err(wrong_type()),
        }
    }

    fn read_words(&self, words: Vec<String>) -> Result<SettingValue, String> {
        let Self::SomeOf(known) = self else { return Err(self.takes()) };
        match words.iter().find(|word| !known.contains(&word.as_str())) {
            Some(unknown) => Err(self.invalid(unknown)),
            None if words.is_empty() => Err(format!("the list is empty: expected {}", self.takes())),
            None => Ok(SettingValue::Words(words)),
        }
    }

    fn within(&self, number: u64, min: u64, max: u64, text: &str) -> Result<u64, String> {
        if (min..=max).contains(&number) { Ok(number) } else { Err(self.invalid(text)) }
    }

    fn invalid(&self, text: &str) -> String {
        const SHOWN_CHARS: usize = 64;
        let shown: String = text.chars().take(SHOWN_CHARS).collect();
        format!("`{shown}` is not valid: expected {}", self.takes())
    }

    /// The accepted values, for error messages and the reference page.
    pub fn takes(&self) -> String {
        let or_word = |or: &Option<&str>| or.map_or(String::new(), |word| format!(", or \"{word}\""));
        match self {
            Self::Flag => "true or false".into(),
            Self::Address => "an address and a port such as 127.0.0.1:7600 or [::1]:7600".into(),
            Self::Text | Self::Secret => "a text".into(),
            Self::Count { min, max, or } => format!("a number from {min} to {max}{}", or_word(or)),
            Self::Duration { min, max, or } => {
                format!("a duration from {} to {}{}", format_duration(*min), format_duration(*max), or_word(or))
            }
            Self::Bytes { min, max, or } => {
                format!("a size from {} to {}{}", format_bytes(*min), format_bytes(*max), or_word(or))
            }
            Self::OneOf(words) => format!("one of {}", words.join(", ")),
            Self::SomeOf(words) => format!("a list of {}", words.join(", ")),
            Self::Keys => "a list of tables with name, secret, scopes and topics".into(),
        }
    }
}

impl fmt::Debug for SettingValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_toml())
    }
}

impl SettingValue {
    /// The value as TOML. Secrets are never written.
    pub fn to_toml(&self) -> String {
        match self {
            Self::Flag(flag) => flag.to_string(),
            Self::Address(address) => format!("\"{address}\""),
            Self::Text(text) => quoted(text),
            Self::Secret(text) if text.is_empty() => quoted(text),
            Self::Secret(_) => quoted("(set)"),
            Self::Count(count) => count.to_string(),
            Self::Duration(duration) => format!("\"{}\"", format_duration(*duration)),
            Self::Bytes(bytes) => format!("\"{}\"", format_bytes(*bytes)),
            Self::Left(word) => format!("\"{word}\""),
            Self::Words(words) => format!("[{}]", words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(", ")),
            Self::Keys(keys) => {
                let shown: Vec<_> = keys.iter().map(KeyEntry::without_secret).collect();
                format!("[{}]", shown.join(", "))
            }
        }
    }
}

fn described(value: &DeValue<'_>) -> String {
    match scalar_text(value) {
        Some(text) => format!("`{text}`"),
        None => format!("a value of type {}", value.type_str()),
    }
}

fn scalar_text(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) => Some(number.as_str().to_owned()),
        DeValue::Float(number) => Some(number.as_str().to_owned()),
        DeValue::Boolean(flag) => Some(flag.to_string()),
        DeValue::Datetime(time) => Some(time.to_string()),
        DeValue::Array(_) | DeValue::Table(_) => None,
    }
}

fn quoted(text: &str) -> String {
    let mut quoted = String::from('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            control if control.is_control() => {
                let _ = write!(quoted, "\\u{:04X}", u32::from(control));
            }
            other => quoted.push(other),
        }
    }
    quoted.push('"');
    quoted
}

const BYTE_UNITS: [(&str, u64); 9] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1000),
    ("B", 1),
];

/// Reads `64KiB`, `1MiB`, `2GB` or a bare number of bytes.
pub fn parse_bytes(text: &str) -> Option<u64> {
    let digits = text.bytes().take_while(|b| b.is_ascii_digit() || *b == b'_').count();
    let amount: u64 = text[..digits].replace('_', "").parse().ok()?;
    let unit = text[digits..].trim_start();
    if unit.is_empty() {
        return Some(amount);
    }
    let (_, factor) = BYTE_UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit))?;
    amount.checked_mul(*factor)
}

/// Writes a size in the form that [`parse_bytes`] reads, in the largest binary unit that divides it.
pub fn format_bytes(bytes: u64) -> String {
    let unit = BYTE_UNITS[..4].iter().find(|(_, factor)| bytes >= *factor && bytes.is_multiple_of(*factor));
    unit.map_or_else(|| bytes.to_string(), |(name, factor)| format!("{}{name}", bytes / factor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_written() {
        for (text, bytes) in [("0", 0), ("64KiB", 65_536), ("1MiB", 1 << 20), ("2 GB", 2_000_000_000), ("1_000", 1000)]
        {
            assert_eq!(parse_bytes(text), Some(bytes), "{text}");
            assert_eq!(parse_bytes(&format_bytes(bytes)), Some(bytes), "{text}");
        }
        for text in ["", "KiB", "1.5MiB", "-1", "1Mib2", "99999999999999999999", "99999999TiB"] {
            assert_eq!(parse_bytes(text), None, "{text}");
        }
    }

    #[test]
    fn the_error_for_a_number_out_of_range_names_the_range() {
        let kind = SettingKind::Count { min: 1, max: 64, or: Some("auto") };
        assert_eq!(kind.read_text("auto"), Ok(SettingValue::Left("auto")));
        let error = kind.read_text("65").unwrap_err();
        assert_eq!(error, "`65` is not valid: expected a number from 1 to 64, or \"auto\"");
    }

    #[test]
    fn a_secret_is_never_printed() {
        let secret = SettingKind::Secret.read_text("hunter2").unwrap();
        assert_eq!((secret.to_toml(), format!("{secret:?}")), ("\"(set)\"".into(), "\"(set)\"".into()));
    }

    #[test]
    fn every_kind_rejects_invalid_text_without_panic() {
        let bounds = (Duration::ZERO, Duration::from_secs(1));
        let kinds = [
            SettingKind::Flag,
            SettingKind::Address,
            SettingKind::Count { min: 0, max: 1, or: None },
            SettingKind::Duration { min: bounds.0, max: bounds.1, or: None },
            SettingKind::Bytes { min: 0, max: 1, or: None },
            SettingKind::OneOf(&["a"]),
            SettingKind::SomeOf(&["a"]),
            SettingKind::Keys,
        ];
        for kind in kinds {
            for text in ["é", "=", "[", "\0", "99999999999999999999", "-1"] {
                assert!(kind.read_text(text).is_err(), "{kind:?} took {text:?}");
            }
        }
    }
}
