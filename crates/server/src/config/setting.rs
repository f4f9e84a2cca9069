//! The declaration of a setting: its name, type, default, range and text, once. The macro `section!` makes from it the entry of the
//! list of settings, the field of the typed configuration and the conversion. The type implies the kind where the kind has no range.

use std::time::Duration;

use super::EffectiveSettings;
use super::value::{SettingKind, SettingValue};

pub const SECOND: Duration = Duration::from_secs(1);
pub const MINUTE: Duration = Duration::from_secs(60);
pub const HOUR: Duration = Duration::from_secs(3600);
pub const DAY: Duration = Duration::from_secs(86_400);
pub const YEAR: Duration = Duration::from_secs(365 * 86_400);
pub const KIB: u64 = 1 << 10;
pub const MIB: u64 = 1 << 20;
pub const TIB: u64 = 1 << 40;

/// A section of the file. `name` is empty for settings without a section.
#[derive(Debug, Clone, Copy)]
pub struct Section {
    pub name: &'static str,
    pub text: &'static str,
    pub settings: &'static [Setting],
}

/// One setting. `path` is `key`, `section.key` or `section.part.key`. Each line of `text` may begin with the space of a doc comment.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    pub path: &'static str,
    pub kind: SettingKind,
    pub default: SettingDefault,
    pub text: &'static str,
}

/// The default of a setting, in the form that is shortest in the declaration.
#[derive(Debug, Clone, Copy)]
pub enum SettingDefault {
    Text(&'static str),
    Count(u64),
    Bytes(u64),
    Millis(u64),
}

/// The typed form of a section.
pub trait ConfigSection {
    const SECTION: Section;

    fn from_settings(settings: &EffectiveSettings) -> Self;
}

/// Declares the settings of a section as a struct: `name: Type = default;`, or `name: Type = default, range;` for numbers, sizes,
/// durations and texts of a few words. The doc comments are the texts for users; their line breaks are those of the example file.
/// `with feature` names the feature of the build without which the settings are only validated.
macro_rules! section {
    (
        $(#[doc = $section_text:literal])+
        pub struct $name:ident in $section:tt $(with feature $feature:tt)? {
            $(
                $(#[doc = $text:literal])+
                $field:ident: $type:ty = $default:expr $(, $kind:expr)?;
            )+
        }
    ) => {
        #[derive(Debug, Clone)]
        $(#[cfg_attr(
            not(feature = $feature),
            expect(dead_code, reason = "settings of an engine that is not built in are only validated")
        )])?
        pub struct $name {
            $(pub $field: $type),+
        }

        impl $crate::config::setting::ConfigSection for $name {
            const SECTION: $crate::config::setting::Section = $crate::config::setting::Section {
                name: $section,
                text: concat!($($section_text, "\n"),+),
                settings: &[$($crate::config::setting::Setting {
                    path: section!(@path $section $field),
                    kind: section!(@kind $type $(, $kind)?),
                    default: $default,
                    text: concat!($($text, "\n"),+),
                }),+],
            };

            fn from_settings(settings: &$crate::config::EffectiveSettings) -> Self {
                Self { $($field: settings.value(section!(@path $section $field))),+ }
            }
        }
    };
    (@path "" $field:ident) => { stringify!($field) };
    (@path $section:tt $field:ident) => { concat!($section, ".", stringify!($field)) };
    (@kind $type:ty) => { <$type as $crate::config::setting_type::FixedKind>::KIND };
    (@kind $type:ty, $kind:expr) => { $kind };
}
pub(super) use section;

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
