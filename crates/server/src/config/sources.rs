//! Reads settings from their sources: a file, variables and flags. Validates each value by itself and records its source. All
//! problems are collected, not only the first. This module must not depend on what a setting is used for.

use std::fmt;

use toml::de::{DeTable, DeValue};

use super::setting::{Setting, variable_of};
use super::settings::{SECTIONS, SETTINGS};
use super::value::SettingValue;

/// `WHIMBREL_…` variables that are not settings.
const OTHER_VARIABLES: [&str; 4] = ["WHIMBREL_SERVER", "WHIMBREL_KEY", "WHIMBREL_TOKEN", "WHIMBREL_CONFIG"];
/// Prefixes of variables that the project's own tests use.
const TEST_VARIABLES: [&str; 2] = ["WHIMBREL_TEST_", "WHIMBREL_CRASH_"];
/// Removed settings, each with its replacement. A start with one of them fails: ignoring it could turn off TLS or SASL.
const REMOVED: [(&str, &str); 1] = [(
    "kafka.options",
    "use the named settings `kafka.tls…`, `kafka.sasl…`, `kafka.compression` and `kafka.client_id`",
)];
/// Renamed settings, each with its new name. A start with one of them fails: ignoring it would apply the default.
const RENAMED: [(&str, &str); 8] = [
    ("header_wait", "header_timeout"),
    ("shutdown_wait", "shutdown_timeout"),
    ("limits.body_wait", "limits.body_timeout"),
    ("holds.behind", "holds.max_backlog"),
    ("push.behind", "push.max_backlog"),
    ("gateway.first_frame", "gateway.handshake_timeout"),
    ("gateway.stuck_wait", "gateway.write_timeout"),
    ("gateway.pong_wait", "gateway.pong_timeout"),
];
/// Minimum similarity of two names for a suggestion, from 0 to 1.
const LIKENESS_MIN: f64 = 0.6;

/// The origin of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ValueSource {
    Default,
    File { name: String, line: usize },
    Variable(String),
    Flag(String),
}

impl fmt::Display for ValueSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { name, line } => write!(f, "{name}:{line}"),
            Self::Variable(name) | Self::Flag(name) => f.write_str(name),
        }
    }
}

/// A value that a source assigns to the setting with that index.
#[derive(Debug)]
pub struct AssignedValue {
    pub setting: usize,
    pub value: SettingValue,
    pub source: ValueSource,
}

/// The results of validation. Problems prevent a start, warnings do not.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Findings {
    pub problems: Vec<String>,
    pub warnings: Vec<String>,
}

pub fn from_file(name: &str, text: &str, findings: &mut Findings) -> Vec<AssignedValue> {
    let (table, errors) = DeTable::parse_recoverable(text);
    for error in &errors {
        let line = error.span().map_or(String::new(), |span| format!(" at line {}", line_of(text, span.start)));
        findings.problems.push(format!("{name}: not TOML{line}: {}", error.message()));
    }
    if !errors.is_empty() {
        return Vec::new();
    }
    let mut reader = FileReader { name, text, findings, given: Vec::new() };
    reader.read_table("", table.get_ref());
    reader.given
}

/// Reads settings from `WHIMBREL_*` variables.
pub fn from_variables(
    variables: impl IntoIterator<Item = (String, String)>,
    findings: &mut Findings,
) -> Vec<AssignedValue> {
    let mut given = Vec::new();
    let ours = variables.into_iter().filter(|(name, _)| name.starts_with("WHIMBREL_"));
    for (name, text) in ours {
        if let Some(index) = SETTINGS.iter().position(|setting| setting.variable() == name) {
            match SETTINGS[index].kind.read_text(&text) {
                Ok(value) => given.push(AssignedValue { setting: index, value, source: ValueSource::Variable(name) }),
                Err(why) => findings.problems.push(format!("{name}: {why}")),
            }
        } else if let Some((path, instead)) = REMOVED.iter().find(|(path, _)| variable_of(path) == name) {
            findings.problems.push(format!("{name}: `{path}` was removed: {instead}"));
        } else if let Some((path, new)) = RENAMED.iter().find(|(path, _)| variable_of(path) == name) {
            findings.problems.push(format!("{name}: `{path}` was renamed to `{new}`: set {}", variable_of(new)));
        } else if !OTHER_VARIABLES.contains(&name.as_str()) && !TEST_VARIABLES.iter().any(|test| name.starts_with(test))
        {
            let known: Vec<String> = SETTINGS.iter().map(Setting::variable).collect();
            let suggestion = most_alike(&name, known.iter().map(String::as_str));
            findings.warnings.push(format!("unknown variable {name} is ignored{}", did_you_mean(suggestion)));
        }
    }
    given
}

/// Reads settings from flags, each as the setting's path, the text and the name of the flag.
pub fn from_flags<'a>(
    flags: impl IntoIterator<Item = (&'a str, &'a str, String)>,
    findings: &mut Findings,
) -> Vec<AssignedValue> {
    let mut given = Vec::new();
    for (path, text, flag) in flags {
        let Some(index) = SETTINGS.iter().position(|setting| setting.path == path) else {
            findings.problems.push(match replacement(path) {
                Some(replacement) => format!("{flag}: `{path}` {replacement}"),
                None => format!("{flag}: unknown key `{path}`{}", did_you_mean(suggestion_for(path))),
            });
            continue;
        };
        match SETTINGS[index].kind.read_text(text) {
            Ok(value) => given.push(AssignedValue { setting: index, value, source: ValueSource::Flag(flag) }),
            Err(why) => findings.problems.push(format!("{flag}: {why}")),
        }
    }
    given
}

struct FileReader<'a> {
    name: &'a str,
    text: &'a str,
    findings: &'a mut Findings,
    given: Vec<AssignedValue>,
}

impl FileReader<'_> {
    fn read_table(&mut self, section: &str, table: &DeTable<'_>) {
        for (key, value) in table.iter() {
            let line = line_of(self.text, key.span().start);
            let path =
                if section.is_empty() { key.get_ref().to_string() } else { format!("{section}.{}", key.get_ref()) };
            if let Some(replacement) = replacement(&path) {
                self.findings.problems.push(format!("{}: `{path}` at line {line} {replacement}", self.name));
                continue;
            }
            let setting = SETTINGS.iter().position(|setting| setting.path == path);
            match (setting, value.get_ref()) {
                (Some(index), value) => self.read_value(index, value, line),
                (None, DeValue::Table(inner)) if is_section(&path) => self.read_table(&path, inner),
                (None, DeValue::Table(_)) if section.is_empty() => {
                    let suggestion = most_alike(&path, section_names().chain(["keys"]));
                    let suggestion = suggestion.map(|name| format!("[{name}]"));
                    self.unknown("section", &format!("[{path}]"), line, suggestion.as_deref());
                }
                (None, _) => self.unknown("key", &path, line, suggestion_for(&path)),
            }
        }
    }

    fn read_value(&mut self, index: usize, value: &DeValue<'_>, line: usize) {
        let setting = &SETTINGS[index];
        match setting.kind.read_toml(value) {
            Ok(value) => {
                let source = ValueSource::File { name: self.name.to_owned(), line };
                self.given.push(AssignedValue { setting: index, value, source });
            }
            Err(why) => self.findings.problems.push(format!("{}: `{}` at line {line}: {why}", self.name, setting.path)),
        }
    }

    fn unknown(&mut self, what: &str, path: &str, line: usize, suggestion: Option<&str>) {
        let text = format!("{}: unknown {what} `{path}` at line {line}{}", self.name, did_you_mean(suggestion));
        self.findings.problems.push(text);
    }
}

/// The rest of the error for a removed or renamed setting.
fn replacement(path: &str) -> Option<String> {
    let removed = REMOVED.iter().find(|(removed, _)| *removed == path);
    let renamed = RENAMED.iter().find(|(renamed, _)| *renamed == path);
    let removed = removed.map(|(_, instead)| format!("was removed: {instead}"));
    removed.or_else(|| renamed.map(|(_, new)| format!("was renamed to `{new}`")))
}

/// Whether a table of that name is a section or contains sections: `horn` contains `horn.apns`.
fn is_section(name: &str) -> bool {
    section_names().any(|section| {
        let rest = section.strip_prefix(name);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    })
}

fn section_names() -> impl Iterator<Item = &'static str> {
    SECTIONS.iter().map(|section| section.name).filter(|name| !name.is_empty())
}

fn line_of(text: &str, byte: usize) -> usize {
    text.as_bytes().iter().take(byte).filter(|b| **b == b'\n').count() + 1
}

/// The most likely intended setting: one with that key in another section, or the one with the most similar path.
fn suggestion_for(path: &str) -> Option<&'static str> {
    let key = path.rsplit('.').next().unwrap_or(path);
    let misplaced = SETTINGS.iter().find(|setting| setting.section_and_key().1 == key).map(|setting| setting.path);
    misplaced.or_else(|| most_alike(path, SETTINGS.iter().map(|setting| setting.path))).or_else(|| {
        let keys = SETTINGS.iter().map(|setting| setting.section_and_key().1);
        let alike = most_alike(key, keys)?;
        SETTINGS.iter().find(|setting| setting.section_and_key().1 == alike).map(|setting| setting.path)
    })
}

fn most_alike<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    known
        .map(|other| (strsim::normalized_damerau_levenshtein(name, other), other))
        .filter(|(likeness, _)| *likeness >= LIKENESS_MIN)
        .max_by(|(one, _), (other, _)| one.total_cmp(other))
        .map(|(_, other)| other)
}

fn did_you_mean(suggestion: Option<&str>) -> String {
    suggestion.map_or(String::new(), |name| format!(": did you mean `{name}`?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems_of(text: &str) -> Vec<String> {
        let mut findings = Findings::default();
        from_file("w.toml", text, &mut findings);
        findings.problems
    }

    #[test]
    fn every_source_rejects_a_removed_setting() {
        let instead = "use the named settings `kafka.tls…`, `kafka.sasl…`, `kafka.compression` and `kafka.client_id`";
        for text in
            ["[kafka]\noptions = \"a=b\"\n", "[kafka]\noptions = { a = \"b\" }\n", "[kafka.options]\na = \"b\"\n"]
        {
            let problems = problems_of(text);
            assert_eq!(problems.len(), 1, "{problems:?}");
            assert!(problems[0].starts_with("w.toml: `kafka.options` at line "), "{problems:?}");
            assert!(problems[0].ends_with(&format!(" was removed: {instead}")), "{problems:?}");
        }
        let mut findings = Findings::default();
        from_variables([("WHIMBREL_KAFKA_OPTIONS".to_owned(), "a=b".to_owned())], &mut findings);
        from_flags([("kafka.options", "a=b", "--set kafka.options".to_owned())], &mut findings);
        let expected = ["WHIMBREL_KAFKA_OPTIONS: `kafka.options`", "--set kafka.options: `kafka.options`"];
        assert_eq!(findings.problems, expected.map(|begin| format!("{begin} was removed: {instead}")));
        assert!(findings.warnings.is_empty());
    }

    #[test]
    fn every_source_rejects_a_renamed_setting_with_its_new_name() {
        for (old, new) in RENAMED {
            assert!(SETTINGS.iter().any(|setting| setting.path == new), "{new}");
            assert_eq!(
                problems_of(&format!("{old} = 1\n")),
                [format!("w.toml: `{old}` at line 1 was renamed to `{new}`")]
            );
            let mut findings = Findings::default();
            from_variables([(variable_of(old), "1".to_owned())], &mut findings);
            from_flags([(old, "1", format!("--set {old}"))], &mut findings);
            let of_variable = format!("{}: `{old}` was renamed to `{new}`: set {}", variable_of(old), variable_of(new));
            assert_eq!(findings.problems, [of_variable, format!("--set {old}: `{old}` was renamed to `{new}`")]);
            assert!(findings.warnings.is_empty());
        }
    }

    #[test]
    fn an_unknown_key_is_reported_with_its_line_and_a_suggestion() {
        assert_eq!(
            problems_of("[log]\nengine = \"embedded\"\nretension = \"1d\"\n"),
            ["w.toml: unknown key `log.retension` at line 3: did you mean `log.retention`?"]
        );
        assert_eq!(
            problems_of("partitions = 3\n"),
            ["w.toml: unknown key `partitions` at line 1: did you mean `topics.partitions`?"]
        );
        assert_eq!(problems_of("zzzzzzzz = 3\n"), ["w.toml: unknown key `zzzzzzzz` at line 1"]);
        assert_eq!(problems_of("[lgo]\nx = 3\n"), ["w.toml: unknown section `[lgo]` at line 1: did you mean `[log]`?"]);
    }

    #[test]
    fn a_section_can_contain_sections() {
        let mut findings = Findings::default();
        let given = from_file("w.toml", "[horn]\ntimeout = \"5s\"\n[horn.apns]\nkey_id = \"k\"\n", &mut findings);
        assert_eq!((given.len(), findings), (2, Findings::default()));
        let problems = problems_of("[horn.apsn]\nx = 1\n");
        assert_eq!(problems.len(), 1, "{problems:?}");
        // The suggested key depends on how many keys the section has.
        assert!(
            problems[0].starts_with("w.toml: unknown key `horn.apsn` at line 1: did you mean `horn.apns."),
            "{problems:?}"
        );
    }

    #[test]
    fn all_problems_are_reported() {
        let problems =
            problems_of("listen = 3\nworkers = \"many\"\n[limits]\nheaders = -1\npayload_bytes = \"1 parsec\"\n");
        assert_eq!(problems.len(), 4, "{problems:?}");
        assert!(problems.iter().any(|problem| problem.starts_with("w.toml: `limits.headers` at line 4: `-1` is not")));
    }

    #[test]
    fn invalid_toml_is_reported_with_its_line() {
        let problems = problems_of("listen = \"a\n");
        assert!(problems[0].starts_with("w.toml: not TOML at line 1"), "{problems:?}");
    }

    #[test]
    fn an_unknown_variable_is_a_warning() {
        let mut findings = Findings::default();
        let variables =
            [("WHIMBREL_LISTN", "x"), ("WHIMBREL_SERVER", "y"), ("HOME", "z"), ("WHIMBREL_TEST_KAFKA", "a")];
        let given = from_variables(variables.map(|(name, text)| (name.into(), text.into())), &mut findings);
        assert!(given.is_empty() && findings.problems.is_empty());
        assert_eq!(findings.warnings, ["unknown variable WHIMBREL_LISTN is ignored: did you mean `WHIMBREL_LISTEN`?"]);
    }
}
