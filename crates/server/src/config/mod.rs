//! Configuration: read from its sources and resolved once. Only the typed [`Config`] leaves this module.
//!
//! Sources in increasing precedence: defaults, a TOML file, `WHIMBREL_*` variables, flags. Every value records its source, which
//! `whimbrel check` prints.

mod example;
mod keys;
mod people_settings;
mod setting;
mod setting_type;
mod settings;
mod sources;
mod validation;
mod value;

use std::path::{Path, PathBuf};

pub use example::example;
pub use keys::KeyEntry;
#[cfg(test)]
pub use keys::SCOPES;
use setting::ConfigSection;
use setting_type::SettingType;
pub use setting_type::{CoordinationEngineName, LogEngineName, PresenceEngineName, StateEngineName, TelemetryFormat};
pub use settings::{Config, HOLD_SHARDS_MAX, ProvidersConfig, SETTINGS};
pub use sources::{Findings, ValueSource};
pub use value::{SettingValue, format_bytes, parse_bytes};

/// The configuration file that is read if no other is given and it exists.
pub const FILE_DEFAULT: &str = "whimbrel.toml";

/// The effective value of every setting, with its source, in the order of [`SETTINGS`].
#[derive(Debug)]
pub struct EffectiveSettings {
    values: Vec<(SettingValue, ValueSource)>,
}

impl EffectiveSettings {
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &SettingValue, &ValueSource)> {
        SETTINGS.iter().zip(&self.values).map(|(setting, (value, source))| (setting.path, value, source))
    }

    fn get(&self, path: &str) -> (&SettingValue, &ValueSource) {
        let index = SETTINGS.iter().position(|setting| setting.path == path);
        let (value, source) = &self.values[index.expect("the setting exists")];
        (value, source)
    }

    /// A setting as its type. A value of another kind is a bug of its declaration, which a test finds.
    fn value<T: SettingType>(&self, path: &str) -> T {
        let (value, _) = self.get(path);
        T::from_value(value).unwrap_or_else(|| unreachable!("`{path}` is {value:?}"))
    }

    fn section<T: ConfigSection>(&self) -> T {
        T::from_settings(self)
    }
}

/// The inputs of a configuration.
#[derive(Debug, Default)]
pub struct Sources {
    /// The file of `--config`. It must exist.
    pub file: Option<PathBuf>,
    pub variables: Vec<(String, String)>,
    /// The setting's path, its text, and the name of the flag.
    pub flags: Vec<(String, String, String)>,
}

/// A configuration with its findings. `config` is `None` if there is any problem.
#[derive(Debug)]
pub struct LoadedConfig {
    pub settings: EffectiveSettings,
    pub findings: Findings,
    pub file: Option<PathBuf>,
    pub config: Option<Config>,
}

pub fn load(sources: &Sources) -> LoadedConfig {
    let mut findings = Findings::default();
    let implied = Path::new(FILE_DEFAULT);
    let file = sources.file.clone().or_else(|| implied.exists().then(|| implied.to_owned()));
    let mut given = Vec::new();
    if let Some(path) = &file {
        match std::fs::read_to_string(path) {
            Ok(text) => given.extend(sources::from_file(&path.display().to_string(), &text, &mut findings)),
            Err(error) => findings.problems.push(format!("{} cannot be read: {error}", path.display())),
        }
    }
    given.extend(sources::from_variables(sources.variables.iter().cloned(), &mut findings));
    let flags = sources.flags.iter().map(|(path, text, flag)| (path.as_str(), text.as_str(), flag.clone()));
    given.extend(sources::from_flags(flags, &mut findings));

    let mut values: Vec<_> = SETTINGS.iter().map(|setting| (setting.default_value(), ValueSource::Default)).collect();
    for one in given {
        values[one.setting] = (one.value, one.source);
    }
    let settings = EffectiveSettings { values };
    let config = Config::from_settings(&settings);
    validation::validate(&config, &settings, &mut findings);
    let config = findings.problems.is_empty().then_some(config);
    LoadedConfig { settings, findings, file, config }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = include_str!("../../../../whimbrel.example.toml");

    #[test]
    fn the_defaults_are_valid() {
        let loaded = load(&Sources::default());
        assert_eq!(loaded.findings, Findings::default());
        assert!(loaded.config.is_some());
    }

    #[test]
    fn the_example_file_matches_the_code() {
        assert!(EXAMPLE == example(), "regenerate it: whimbrel check --example > whimbrel.example.toml");
    }

    #[test]
    fn the_example_file_has_every_setting_with_its_default() {
        let mut findings = Findings::default();
        let given = sources::from_file("example", EXAMPLE, &mut findings);
        assert_eq!(findings, Findings::default());
        let mut listed: Vec<_> = given.iter().map(|one| one.setting).collect();
        listed.sort_unstable();
        let all_but_keys: Vec<_> = (0..SETTINGS.len()).filter(|index| SETTINGS[*index].path != "keys").collect();
        assert_eq!(listed, all_but_keys);
        for one in given {
            assert_eq!(one.value, SETTINGS[one.setting].default_value(), "{}", SETTINGS[one.setting].path);
        }
    }

    #[test]
    fn a_flag_overrides_a_variable_and_a_variable_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("w.toml");
        std::fs::write(&file, "node = 1\nworkers = 1\nconnections_max = 1\n").unwrap();
        let variable = |name: &str| (name.to_owned(), "2".to_owned());
        let sources = Sources {
            file: Some(file),
            variables: vec![variable("WHIMBREL_NODE"), variable("WHIMBREL_WORKERS")],
            flags: vec![("node".into(), "3".into(), "--set node".into())],
        };
        let loaded = load(&sources);
        assert_eq!(loaded.settings.get("node"), (&SettingValue::Count(3), &ValueSource::Flag("--set node".into())));
        assert_eq!(
            loaded.settings.get("workers"),
            (&SettingValue::Count(2), &ValueSource::Variable("WHIMBREL_WORKERS".into()))
        );
        assert!(matches!(
            loaded.settings.get("connections_max"),
            (SettingValue::Count(1), ValueSource::File { line: 3, .. })
        ));
        assert_eq!(loaded.settings.get("listen").1, &ValueSource::Default);
        assert!(loaded.config.is_some());
    }

    #[test]
    fn a_missing_file_of_the_config_flag_is_a_problem() {
        let loaded = load(&Sources { file: Some("no/such.toml".into()), ..Sources::default() });
        assert!(loaded.config.is_none());
        assert!(loaded.findings.problems[0].starts_with("no/such.toml cannot be read"));
    }
}
