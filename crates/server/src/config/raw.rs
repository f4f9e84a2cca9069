//! What was given, source by source: a file, variables, flags. Each value is judged by itself and remembers where it came from;
//! everything that is wrong is collected, not only the first. Nothing here knows what a setting is for.

use std::fmt;

use toml::de::{DeTable, DeValue};

use super::setting::{Setting, variable_of};
use super::settings::{SETTINGS, sections};
use super::value::{Kind, Value};

/// Variables that are Whimbrel's and no settings.
const OTHER_VARIABLES: [&str; 4] = ["WHIMBREL_SERVER", "WHIMBREL_KEY", "WHIMBREL_TOKEN", "WHIMBREL_CONFIG"];
/// Prefixes of variables that the project's own tests use.
const TEST_VARIABLES: [&str; 2] = ["WHIMBREL_TEST_", "WHIMBREL_CRASH_"];
/// Removed settings, each with its replacement. A start with one of them is refused: ignoring it could turn off TLS or SASL.
const REMOVED: [(&str, &str); 1] = [(
    "kafka.options",
    "use the named settings `kafka.tls…`, `kafka.sasl…`, `kafka.compression` and `kafka.client_id`",
)];
/// How alike two names must be for one to be suggested for the other.
const LIKENESS_MIN: f64 = 0.6;

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    Default,
    File { name: String, line: usize },
    Variable(String),
    Flag(String),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { name, line } => write!(f, "{name}:{line}"),
            Self::Variable(name) | Self::Flag(name) => f.write_str(name),
        }
    }
}

/// A value that was given for the setting of that index.
#[derive(Debug)]
pub struct Given {
    pub setting: usize,
    pub value: Value,
    pub source: Source,
}

/// What was found wrong. Problems stop a start, warnings do not.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Findings {
    pub problems: Vec<String>,
    pub warnings: Vec<String>,
}

/// Reads a configuration file's text.
pub fn from_file(name: &str, text: &str, findings: &mut Findings) -> Vec<Given> {
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

/// Reads what `WHIMBREL_*` variables say.
pub fn from_variables(variables: impl IntoIterator<Item = (String, String)>, findings: &mut Findings) -> Vec<Given> {
    let mut given = Vec::new();
    let ours = variables.into_iter().filter(|(name, _)| name.starts_with("WHIMBREL_"));
    for (name, text) in ours {
        if let Some(index) = SETTINGS.iter().position(|setting| setting.variable() == name) {
            match SETTINGS[index].kind.read_text(&text) {
                Ok(value) => given.push(Given { setting: index, value, source: Source::Variable(name) }),
                Err(why) => findings.problems.push(format!("{name}: {why}")),
            }
        } else if let Some((path, instead)) = REMOVED.iter().find(|(path, _)| variable_of(path) == name) {
            findings.problems.push(format!("{name}: `{path}` was removed: {instead}"));
        } else if !OTHER_VARIABLES.contains(&name.as_str()) && !TEST_VARIABLES.iter().any(|test| name.starts_with(test))
        {
            let known: Vec<String> = SETTINGS.iter().map(Setting::variable).collect();
            let suggestion = most_alike(&name, known.iter().map(String::as_str));
            findings.warnings.push(format!("unknown variable {name} is ignored{}", did_you_mean(suggestion)));
        }
    }
    given
}

/// Reads flags: the setting's path, what was given, and how the flag is called.
pub fn from_flags<'a>(
    flags: impl IntoIterator<Item = (&'a str, &'a str, String)>,
    findings: &mut Findings,
) -> Vec<Given> {
    let mut given = Vec::new();
    for (path, text, flag) in flags {
        let Some(index) = SETTINGS.iter().position(|setting| setting.path == path) else {
            findings.problems.push(match removed(path) {
                Some(instead) => format!("{flag}: `{path}` was removed: {instead}"),
                None => format!("{flag}: unknown key `{path}`{}", did_you_mean(suggestion_for(path))),
            });
            continue;
        };
        match SETTINGS[index].kind.read_text(text) {
            Ok(value) => given.push(Given { setting: index, value, source: Source::Flag(flag) }),
            Err(why) => findings.problems.push(format!("{flag}: {why}")),
        }
    }
    given
}

struct FileReader<'a> {
    name: &'a str,
    text: &'a str,
    findings: &'a mut Findings,
    given: Vec<Given>,
}

impl FileReader<'_> {
    fn read_table(&mut self, section: &str, table: &DeTable<'_>) {
        for (key, value) in table.iter() {
            let line = line_of(self.text, key.span().start);
            let path =
                if section.is_empty() { key.get_ref().to_string() } else { format!("{section}.{}", key.get_ref()) };
            if let Some(instead) = removed(&path) {
                let problem = format!("{}: `{path}` at line {line} was removed: {instead}", self.name);
                self.findings.problems.push(problem);
                continue;
            }
            let setting = SETTINGS.iter().position(|setting| setting.path == path);
            match (setting, value.get_ref()) {
                (Some(index), value) => self.read_value(index, value, line),
                (None, DeValue::Table(inner)) if is_section(&path) => self.read_table(&path, inner),
                (None, DeValue::Table(_)) if section.is_empty() => {
                    let suggestion = most_alike(&path, sections().map(|(name, _)| name).chain(["keys"]));
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
                let source = Source::File { name: self.name.to_owned(), line };
                self.given.push(Given { setting: index, value, source });
            }
            Err(why) => self.findings.problems.push(format!("{}: `{}` at line {line}: {why}", self.name, setting.path)),
        }
    }

    fn unknown(&mut self, what: &str, path: &str, line: usize, suggestion: Option<&str>) {
        let text = format!("{}: unknown {what} `{path}` at line {line}{}", self.name, did_you_mean(suggestion));
        self.findings.problems.push(text);
    }
}

/// The replacement of a removed setting.
fn removed(path: &str) -> Option<&'static str> {
    REMOVED.iter().find(|(removed, _)| *removed == path).map(|(_, instead)| *instead)
}

/// Whether a table of that name is a section, or has sections in it: `horn` has `horn.apns`.
fn is_section(name: &str) -> bool {
    let mut sections = SETTINGS.iter().filter(|setting| !matches!(setting.kind, Kind::Keys));
    sections.any(|setting| {
        let rest = setting.section_and_key().0.strip_prefix(name);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    })
}

fn line_of(text: &str, byte: usize) -> usize {
    text.as_bytes().iter().take(byte).filter(|b| **b == b'\n').count() + 1
}

/// The setting that was probably meant: one of that key in another section, or the one with the most similar path.
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
    fn a_removed_setting_is_refused_wherever_it_is_given() {
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
    fn an_unknown_key_is_named_with_its_line_and_what_was_meant() {
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
    fn a_section_may_have_sections() {
        let mut findings = Findings::default();
        let given = from_file("w.toml", "[horn]\ntimeout = \"5s\"\n[horn.apns]\nkey_id = \"k\"\n", &mut findings);
        assert_eq!((given.len(), findings), (2, Findings::default()));
        let problems = problems_of("[horn.apsn]\nx = 1\n");
        assert_eq!(problems.len(), 1, "{problems:?}");
        // Which of them is nearest is a matter of how many there are.
        assert!(
            problems[0].starts_with("w.toml: unknown key `horn.apsn` at line 1: did you mean `horn.apns."),
            "{problems:?}"
        );
    }

    #[test]
    fn every_problem_is_told_not_only_the_first() {
        let problems =
            problems_of("listen = 3\nworkers = \"many\"\n[limits]\nheaders = -1\npayload_bytes = \"1 parsec\"\n");
        assert_eq!(problems.len(), 4, "{problems:?}");
        assert!(problems.iter().any(|problem| problem.starts_with("w.toml: `limits.headers` at line 4: `-1` is not")));
    }

    #[test]
    fn what_is_no_toml_is_told_with_its_line() {
        let problems = problems_of("listen = \"a\n");
        assert!(problems[0].starts_with("w.toml: not TOML at line 1"), "{problems:?}");
    }

    #[test]
    fn an_unknown_variable_is_only_warned_about() {
        let mut findings = Findings::default();
        let variables =
            [("WHIMBREL_LISTN", "x"), ("WHIMBREL_SERVER", "y"), ("HOME", "z"), ("WHIMBREL_TEST_KAFKA", "a")];
        let given = from_variables(variables.map(|(name, text)| (name.into(), text.into())), &mut findings);
        assert!(given.is_empty() && findings.problems.is_empty());
        assert_eq!(findings.warnings, ["unknown variable WHIMBREL_LISTN is ignored: did you mean `WHIMBREL_LISTEN`?"]);
    }
}
