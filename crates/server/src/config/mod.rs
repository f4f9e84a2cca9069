//! Configuration: read raw from its sources, resolved once, and only its resolved form travels.
//!
//! Sources, each before the ones to its left: defaults, a TOML file, `WHIMBREL_*` variables, flags. Every value remembers its
//! source, so that `whimbrel check` can say where it came from.

mod example;
mod judge;
mod keys;
mod people;
mod people_settings;
mod raw;
mod resolved;
mod setting;
mod settings;
mod value;

use std::path::{Path, PathBuf};

pub use example::example;
pub use keys::KeyEntry;
#[cfg(test)]
pub use keys::SCOPES;
pub use people::PresenceEngineName;
pub use raw::{Findings, Source};
pub use resolved::{Config, CoordinationEngineName, LogEngineName, StateEngineName, TelemetryFormat};
pub use settings::{HOLD_SHARDS_MAX, SETTINGS};
pub use value::{Value, format_bytes, parse_bytes};

/// The file that is read where no other is named, if it is there.
pub const FILE_DEFAULT: &str = "whimbrel.toml";

/// Every setting's value in force, with its source, in the order of [`SETTINGS`].
#[derive(Debug)]
pub struct Settings {
    values: Vec<(Value, Source)>,
}

impl Settings {
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &Value, &Source)> {
        SETTINGS.iter().zip(&self.values).map(|(setting, (value, source))| (setting.path, value, source))
    }

    fn get(&self, path: &str) -> (&Value, &Source) {
        let index = SETTINGS.iter().position(|setting| setting.path == path);
        let (value, source) = &self.values[index.expect("only settings that exist are asked for")];
        (value, source)
    }
}

/// Where settings are given.
#[derive(Debug, Default)]
pub struct Sources {
    /// A file that was asked for: it must be there.
    pub file: Option<PathBuf>,
    pub variables: Vec<(String, String)>,
    /// The setting's path, what was given, how the flag is called.
    pub flags: Vec<(String, String, String)>,
}

/// What loading found. `config` is there where nothing is wrong.
#[derive(Debug)]
pub struct Loaded {
    pub settings: Settings,
    pub findings: Findings,
    /// The file that was read.
    pub file: Option<PathBuf>,
    pub config: Option<Config>,
}

/// Reads all sources and resolves them.
pub fn load(sources: &Sources) -> Loaded {
    let mut findings = Findings::default();
    let implied = Path::new(FILE_DEFAULT);
    let file = sources.file.clone().or_else(|| implied.exists().then(|| implied.to_owned()));
    let mut given = Vec::new();
    if let Some(path) = &file {
        match std::fs::read_to_string(path) {
            Ok(text) => given.extend(raw::from_file(&path.display().to_string(), &text, &mut findings)),
            Err(error) => findings.problems.push(format!("{} cannot be read: {error}", path.display())),
        }
    }
    given.extend(raw::from_variables(sources.variables.iter().cloned(), &mut findings));
    let flags = sources.flags.iter().map(|(path, text, flag)| (path.as_str(), text.as_str(), flag.clone()));
    given.extend(raw::from_flags(flags, &mut findings));

    let mut values: Vec<_> = SETTINGS.iter().map(|setting| (setting.default_value(), Source::Default)).collect();
    for one in given {
        values[one.setting] = (one.value, one.source);
    }
    let settings = Settings { values };
    let config = resolved::resolve(&settings, &mut findings);
    let config = findings.problems.is_empty().then_some(config);
    Loaded { settings, findings, file, config }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = include_str!("../../../../whimbrel.example.toml");

    #[test]
    fn the_example_file_is_what_the_code_says() {
        assert!(EXAMPLE == example(), "write it anew: whimbrel check --example > whimbrel.example.toml");
    }

    #[test]
    fn the_example_file_lists_every_key_and_is_exactly_the_defaults() {
        let mut findings = Findings::default();
        let given = raw::from_file("example", EXAMPLE, &mut findings);
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
    fn a_flag_goes_before_a_variable_and_a_variable_before_the_file() {
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
        assert_eq!(loaded.settings.get("node"), (&Value::Count(3), &Source::Flag("--set node".into())));
        assert_eq!(loaded.settings.get("workers"), (&Value::Count(2), &Source::Variable("WHIMBREL_WORKERS".into())));
        assert!(matches!(loaded.settings.get("connections_max"), (Value::Count(1), Source::File { line: 3, .. })));
        assert_eq!(loaded.settings.get("listen").1, &Source::Default);
        assert!(loaded.config.is_some());
    }

    #[test]
    fn a_file_that_was_asked_for_and_is_not_there_is_a_problem() {
        let loaded = load(&Sources { file: Some("no/such.toml".into()), ..Sources::default() });
        assert!(loaded.config.is_none());
        assert!(loaded.findings.problems[0].starts_with("no/such.toml cannot be read"));
    }
}
