//! The types of settings: each converts the value that its kind yields. A value of another kind is a bug of a declaration, which a
//! test finds.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use whimbrel_model::parse_duration;

use super::keys::KeyEntry;
use super::value::{SettingKind, SettingValue};

/// The type of a setting.
pub trait SettingType: Sized {
    /// The typed value; `None` for a value of another kind.
    fn from_value(value: &SettingValue) -> Option<Self>;
}

/// A type whose settings all have the same kind. The kind of a number, a size or a duration has a range of its own instead.
pub trait FixedKind: SettingType {
    const KIND: SettingKind;
}

macro_rules! fixed_kind {
    ($($type:ty: $kind:ident($value:ident) => $into:expr;)+) => {$(
        impl SettingType for $type {
            fn from_value(value: &SettingValue) -> Option<Self> {
                match value {
                    SettingValue::$kind($value) => Some($into),
                    _ => None,
                }
            }
        }

        impl FixedKind for $type {
            const KIND: SettingKind = SettingKind::$kind;
        }
    )+};
}

fixed_kind! {
    bool: Flag(flag) => *flag;
    SocketAddr: Address(address) => *address;
    SecretText: Secret(secret) => SecretText(secret.clone());
    Vec<KeyEntry>: Keys(keys) => keys.clone();
    String: Text(text) => text.clone();
    PathBuf: Text(text) => PathBuf::from(text);
    // A file that can be absent: an empty text.
    Option<PathBuf>: Text(text) => Some(text).filter(|text| !text.trim().is_empty()).map(PathBuf::from);
    // A name that Whimbrel can find itself: the text `auto`.
    Option<String>: Text(text) => Some(text.clone()).filter(|text| text != "auto");
    Vec<String>: Text(text) => separated(text).map(str::to_owned).collect();
    Vec<PathBuf>: Text(text) => separated(text).map(PathBuf::from).collect();
    // The writers of presence: lists that semicolons separate.
    Vec<Vec<String>>: Text(text) => match text.trim() {
        "" => Vec::new(),
        lists => lists.split(';').map(|list| separated(list).map(str::to_owned).collect()).collect(),
    };
    // Delays. A text that is not a duration is an `Err`, which validation reports.
    Vec<Result<Duration, String>>: Text(text) => separated(text)
        .map(|delay| parse_duration(delay).map_err(|error| format!("`{delay}`: {error}")))
        .collect();
}

/// The items of a comma-separated text.
fn separated(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|one| !one.is_empty())
}

macro_rules! ranged {
    ($($type:ty: $pattern:pat => $into:expr;)+) => {$(
        impl SettingType for $type {
            fn from_value(value: &SettingValue) -> Option<Self> {
                match value {
                    $pattern => Some($into),
                    _ => None,
                }
            }
        }
    )+};
}

ranged! {
    Duration: SettingValue::Duration(duration) => *duration;
    u64: SettingValue::Count(number) | SettingValue::Bytes(number) => *number;
    usize: SettingValue::Count(number) | SettingValue::Bytes(number) => Self::try_from(*number).unwrap_or(Self::MAX);
    u32: SettingValue::Count(number) => Self::try_from(*number).unwrap_or(Self::MAX);
    u16: SettingValue::Count(number) => Self::try_from(*number).unwrap_or(Self::MAX);
}

/// `None` is the word of the kind for "none" or "automatic".
macro_rules! optional {
    ($($type:ty)+) => {$(
        impl SettingType for Option<$type> {
            fn from_value(value: &SettingValue) -> Option<Self> {
                match value {
                    SettingValue::Left(_) => Some(None),
                    value => <$type>::from_value(value).map(Some),
                }
            }
        }
    )+};
}

optional! { Duration u64 usize u32 }

macro_rules! words {
    ($($(#[$doc:meta])* pub enum $name:ident { $($variant:ident = $word:literal),+ })+) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name {
            $($variant),+
        }

        impl SettingType for $name {
            fn from_value(value: &SettingValue) -> Option<Self> {
                match value {
                    SettingValue::Text(text) => match text.as_str() {
                        $($word => Some(Self::$variant),)+
                        _ => None,
                    },
                    _ => None,
                }
            }
        }

        impl FixedKind for $name {
            const KIND: SettingKind = SettingKind::OneOf(&[$($word),+]);
        }
    )+};
}

words! {
    pub enum LogEngineName { Embedded = "embedded", Kafka = "kafka" }
    /// Where state beside the log is stored.
    pub enum StateEngineName { Embedded = "embedded", Redis = "redis" }
    pub enum PresenceEngineName { Memory = "memory", Redis = "redis" }
    pub enum CoordinationEngineName { Process = "process", Etcd = "etcd" }
    pub enum TelemetryFormat { Text = "text", Json = "json" }
}

/// A text that must not be printed.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretText(pub String);

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "none" } else { "(set)" })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Roles {
    pub receive: bool,
    pub center: bool,
    pub worker: bool,
    pub gateway: bool,
    pub presence: bool,
    pub carrier: bool,
    pub horn: bool,
}

impl SettingType for Roles {
    fn from_value(value: &SettingValue) -> Option<Self> {
        let SettingValue::Words(words) = value else { return None };
        let has = |role: &str| words.iter().any(|word| word == role || word == "all");
        Some(Self {
            receive: has("receive"),
            center: has("center"),
            worker: has("worker"),
            gateway: has("gateway"),
            presence: has("presence"),
            carrier: has("carrier"),
            horn: has("horn"),
        })
    }
}

impl FixedKind for Roles {
    const KIND: SettingKind =
        SettingKind::SomeOf(&["all", "receive", "center", "worker", "gateway", "presence", "carrier", "horn"]);
}

impl Roles {
    pub fn names(self) -> Vec<&'static str> {
        self.each().into_iter().filter(|(runs, _)| *runs).map(|(_, name)| name).collect()
    }

    pub fn are_all(self) -> bool {
        self.each().iter().all(|(runs, _)| *runs)
    }

    fn each(self) -> [(bool, &'static str); 7] {
        [
            (self.receive, "receive"),
            (self.center, "center"),
            (self.worker, "worker"),
            (self.gateway, "gateway"),
            (self.presence, "presence"),
            (self.carrier, "carrier"),
            (self.horn, "horn"),
        ]
    }
}
