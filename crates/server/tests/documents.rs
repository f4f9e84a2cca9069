//! Compares each list of the reference pages with the code. The tests must not judge the prose of a page; its writer keeps that true.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use whimbrel_egress::{horn, worker};
use whimbrel_ingress::{ApiProblem, Code, METRIC_NAMES, served_paths};
use whimbrel_people::{carrier, gateway, presence};

/// A text that is valid only for settings of free text: not a number, and a duration beyond every bound.
const NONSENSE: &str = "99999999w";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn page(name: &str) -> String {
    fs::read_to_string(root().join("docs/reference").join(name)).unwrap()
}

/// The cells of every row whose first cell is a single word in backticks, by that word.
fn rows(page: &str) -> BTreeMap<String, Vec<String>> {
    let mut found = BTreeMap::new();
    for line in page.lines().filter(|line| line.starts_with("| `")) {
        let line = line.trim().trim_matches('|').replace("\\|", "\u{0}");
        let cells: Vec<String> = line.split('|').map(|cell| cell.trim().replace('\u{0}', "|")).collect();
        let word = cells[0].strip_prefix('`').and_then(|rest| rest.strip_suffix('`'));
        if let Some(word) = word.filter(|word| !word.contains('`')) {
            let earlier = found.insert(word.to_owned(), cells.clone());
            assert!(earlier.is_none(), "`{word}` has two rows");
        }
    }
    found
}

/// The rows of the tables whose header begins with that cell.
fn rows_under(page: &str, header: &str) -> BTreeMap<String, Vec<String>> {
    let mut tables = String::new();
    let mut is_wanted = false;
    for line in page.lines() {
        is_wanted = line.starts_with('|') && (is_wanted || line.starts_with(&format!("| {header} |")));
        if is_wanted {
            tables.push_str(line);
            tables.push('\n');
        }
    }
    rows(&tables)
}

/// The code of every crate, without its tests.
fn sources() -> Vec<String> {
    fn walk(folder: &Path, found: &mut Vec<String>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(path).unwrap();
                found.push(text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default().to_owned());
            }
        }
    }
    let mut found = Vec::new();
    for room in fs::read_dir(root().join("crates")).unwrap() {
        walk(&room.unwrap().path().join("src"), &mut found);
    }
    found
}

/// The first text literal after each occurrence of `before`, ignoring white space.
fn literals_after(before: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for source in sources() {
        for rest in source.split(before).skip(1) {
            if let Some(literal) = rest.trim_start().strip_prefix('"') {
                found.insert(literal.split('"').next().unwrap_or_default().to_owned());
            }
        }
    }
    found
}

/// `INVALID_ARGUMENT` for `InvalidArgument`.
fn as_grpc_writes_it(code: tonic::Code) -> String {
    let mut text = String::new();
    for letter in format!("{code:?}").chars() {
        if letter.is_ascii_uppercase() && !text.is_empty() {
            text.push('_');
        }
        text.push(letter.to_ascii_uppercase());
    }
    text
}

#[test]
fn the_problems_page_has_every_code_with_its_status() {
    let documented: BTreeMap<String, Vec<String>> = rows_under(&page("problems.md"), "code")
        .into_iter()
        .map(|(word, cells)| (word, cells[1..5].to_vec()))
        .collect();
    let in_code: BTreeMap<String, Vec<String>> = Code::ALL
        .iter()
        .map(|code| {
            let retry_after = code.retry_after_s().map_or(String::new(), |seconds| seconds.to_string());
            let status = tonic::Status::from(ApiProblem::new(*code, ""));
            let grpc = format!("`{}`", as_grpc_writes_it(status.code()));
            (code.word().to_owned(), vec![code.status().to_string(), retry_after, grpc, code.title().to_owned()])
        })
        .collect();
    assert_eq!(documented, in_code);
}

/// The output of `whimbrel check` in an empty folder, without environment variables.
fn checked(arguments: &[String]) -> serde_json::Value {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_whimbrel"));
    let output = command.current_dir(folder.path()).env_clear().args(["check", "--json"]).args(arguments).output();
    serde_json::from_slice(&output.unwrap().stdout).unwrap()
}

#[test]
fn the_configuration_page_has_every_setting_with_its_default() {
    let documented: BTreeMap<String, String> = rows_under(&page("configuration.md"), "setting")
        .into_iter()
        .map(|(setting, cells)| (setting, cells[1].trim_matches('`').to_owned()))
        .collect();
    let shown = checked(&[]);
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    let settings = shown["settings"].as_array().unwrap();
    let in_code = settings.iter().map(|one| (text(&one["setting"]), text(&one["value"]))).collect();
    assert_eq!(documented, in_code);
}

#[test]
fn the_configuration_page_has_the_accepted_values_of_each_setting() {
    let documented = rows_under(&page("configuration.md"), "setting");
    let arguments: Vec<String> =
        documented.keys().flat_map(|key| ["--set".to_owned(), format!("{key}={NONSENSE}")]).collect();
    let shown = checked(&arguments);
    let refusal = format!(": `{NONSENSE}` is not valid: expected ");
    let mut compared = 0;
    for problem in shown["problems"].as_array().unwrap() {
        let problem = problem.as_str().unwrap();
        let refused = problem.strip_prefix("--set ").and_then(|rest| rest.split_once(&refusal));
        if let Some((key, takes)) = refused {
            assert_eq!(documented[key][2], takes, "{key}");
            compared += 1;
        }
    }
    // Free texts accept anything, and `keys` has its own error.
    let free = documented.values().filter(|cells| cells[2] == "a text").count();
    assert_eq!(compared + free + 1, documented.len());
}

#[test]
fn the_metrics_page_has_every_metric() {
    let documented: BTreeSet<String> = rows_under(&page("metrics.md"), "metric").into_keys().collect();
    let of_services = [
        METRIC_NAMES,
        whimbrel_catalogue::topic_metrics::NAMES,
        whimbrel_holds::METRIC_NAMES,
        whimbrel_dispatch::METRIC_NAMES,
        worker::METRIC_NAMES,
    ];
    let of_people = [gateway::METRIC_NAMES, carrier::METRIC_NAMES, presence::metrics::NAMES, horn::METRIC_NAMES];
    let of_roles = of_services.into_iter().chain(of_people);
    let named = of_roles.flatten().map(|(name, _)| (*name).to_owned());
    let macros = ["counter!(", "gauge!(", "histogram!("];
    let in_code: BTreeSet<String> = named.chain(macros.into_iter().flat_map(literals_after)).collect();
    assert_eq!(documented, in_code);
}

#[test]
fn the_events_page_has_every_kind() {
    let documented: BTreeSet<String> = rows_under(&page("events.md"), "kind").into_keys().collect();
    let makers = ["Event::new(", "Event::warning(", "Event::failure("];
    let in_code: BTreeSet<String> = makers.into_iter().flat_map(literals_after).collect();
    assert_eq!(documented, in_code);
}

#[test]
fn the_http_page_has_every_path_with_its_methods() {
    let text = page("http.md");
    let headings = text.lines().filter_map(|line| line.strip_prefix("### `")?.strip_suffix('`'));
    let documented: BTreeSet<String> = headings.map(str::to_owned).collect();
    // The server adds `/metrics` to the paths of the API.
    let mut in_code = BTreeSet::from(["GET /metrics".to_owned()]);
    for (path, methods) in served_paths().chain(gateway::PATHS) {
        in_code.extend(methods.iter().map(|method| format!("{} {path}", method.to_uppercase())));
    }
    assert_eq!(documented, in_code);
}

/// The blocks of TOML of the pages that show a configuration.
fn configurations() -> Vec<(String, String)> {
    let mut found = Vec::new();
    for folder in ["docs/operating", "docs/guides"] {
        for entry in fs::read_dir(root().join(folder)).unwrap() {
            let path = entry.unwrap().path();
            let text = fs::read_to_string(&path).unwrap();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            let blocks = text.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next());
            found.extend(blocks.map(|block| (name.clone(), block.to_owned())));
        }
    }
    found
}

#[test]
fn every_configuration_on_a_page_is_valid() {
    let found = configurations();
    assert!(
        found.iter().any(|(_, text)| text.contains("engine = \"etcd\"")),
        "a configuration of several nodes is among them"
    );
    for (page, text) in found {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), &text).unwrap();
        let shown = checked(&["--config".to_owned(), file.path().display().to_string()]);
        // Files in a page's configuration do not exist on this machine.
        let is_of_a_file = |problem: &&serde_json::Value| problem.to_string().contains("/etc/whimbrel/");
        let problems = shown["problems"].as_array().expect("a list of problems");
        let others: Vec<_> = problems.iter().filter(|problem| !is_of_a_file(problem)).collect();
        assert!(others.is_empty(), "{page}:\n{text}\n{others:?}");
    }
}
