//! Tidy checks: rules for every file of the tree, and the dependencies that each crate may have.

mod language;
mod names;
mod shape;
mod source;

use std::fs;
use std::path::{Path, PathBuf};

/// The workspace crates that each crate may depend on. Every crate must be listed.
const ALLOWED_DEPENDENCIES: [(&str, &[&str]); 15] = [
    ("model", &[]),
    ("storage", &[]),
    ("api", &[]),
    ("client", &["api"]),
    ("engines", &["model", "storage"]),
    ("catalogue", &["model"]),
    ("cluster", &["model"]),
    ("holds", &["model", "catalogue", "cluster"]),
    ("dispatch", &["model", "catalogue", "cluster"]),
    ("egress", &["model", "api", "cluster"]),
    ("people", &["model", "api", "catalogue", "cluster"]),
    ("ingress", &["model", "api", "catalogue", "cluster"]),
    ("sim", &["model", "storage", "catalogue", "cluster", "holds", "dispatch", "people"]),
    ("bench", &["model", "people", "client"]),
    (
        "server",
        &[
            "model",
            "engines",
            "api",
            "catalogue",
            "cluster",
            "holds",
            "dispatch",
            "egress",
            "people",
            "ingress",
            "client",
            "bench",
        ],
    ),
];

/// The most lines of a source file.
const LINES_MAX: usize = 700;

/// Names that explain nothing.
const EMPTY_NAMES: [&str; 6] = ["utils", "util", "helpers", "common", "misc", "manager"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Every file of the tree without build output and hidden folders other than `.ci`.
fn files() -> Vec<PathBuf> {
    fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_hidden = name.starts_with('.') && name != ".ci";
            if is_hidden || ["target", "whimbrel-data", "node_modules"].contains(&&*name) {
                continue;
            }
            if entry.file_type().unwrap().is_dir() {
                walk(&entry.path(), found);
            } else {
                found.push(entry.path());
            }
        }
    }
    let mut found = Vec::new();
    walk(&root(), &mut found);
    found
}

fn sources() -> Vec<(PathBuf, String)> {
    let is_source = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "rs");
    files().into_iter().filter(is_source).map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect()
}

fn shown(path: &Path) -> String {
    path.strip_prefix(root()).unwrap().display().to_string()
}

fn assert_none(complaints: Vec<String>) {
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

#[test]
fn crates_depend_only_on_allowed_crates() {
    let mut complaints = Vec::new();
    for entry in fs::read_dir(root().join("crates")).unwrap() {
        let folder = entry.unwrap().path();
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        let Some((_, allowed)) = ALLOWED_DEPENDENCIES.iter().find(|(listed, _)| *listed == name) else {
            complaints.push(format!("crates/{name} is not in ALLOWED_DEPENDENCIES"));
            continue;
        };
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        // Integration tests may use any crate.
        let dependencies = manifest.split("[dev-dependencies]").next().unwrap_or_default();
        for line in dependencies.lines() {
            let Some(used) = line.strip_prefix("whimbrel-").and_then(|rest| rest.split(['.', ' ', '=']).next()) else {
                continue;
            };
            if !allowed.contains(&used) {
                complaints.push(format!("crates/{name} must not depend on crates/{used}"));
            }
        }
    }
    assert_none(complaints);
}

#[test]
fn every_source_file_says_what_it_holds() {
    let silent = sources().into_iter().filter(|(_, text)| !text.starts_with("//!"));
    assert_none(silent.map(|(path, _)| format!("{} does not begin with //!", shown(&path))).collect());
}

#[test]
fn every_source_file_fits_into_a_head() {
    let long = sources().into_iter().filter(|(_, text)| text.lines().count() > LINES_MAX);
    assert_none(long.map(|(path, text)| format!("{} has {} lines", shown(&path), text.lines().count())).collect());
}

#[test]
fn names_explain_something() {
    let empty = files().into_iter().filter(|path| {
        let parts = path.strip_prefix(root()).unwrap().components();
        parts.map(|part| part.as_os_str().to_string_lossy().into_owned()).any(|part| {
            let stem = part.split('.').next().unwrap_or_default();
            EMPTY_NAMES.contains(&stem)
        })
    });
    assert_none(empty.map(|path| shown(&path)).collect());
}

#[test]
fn nothing_is_left_open() {
    let marks = ["TO".to_owned() + "DO", "FIX".to_owned() + "ME", "XX".to_owned() + "X"];
    let mut complaints = Vec::new();
    for (path, text) in sources() {
        for (number, line) in text.lines().enumerate() {
            if marks.iter().any(|mark| line.contains(mark.as_str())) {
                complaints.push(format!("{}:{}: {line}", shown(&path), number + 1));
            }
        }
    }
    assert_none(complaints);
}

#[test]
fn documents_name_only_what_is_there() {
    let mut complaints = Vec::new();
    let is_document = |path: &&PathBuf| path.extension().is_some_and(|extension| extension == "md");
    for path in files().iter().filter(is_document) {
        let text = fs::read_to_string(path).unwrap();
        let dated = shown(path).starts_with("docs/decisions/") || shown(path) == "CHANGELOG.md";
        for word in text.split('`').skip(1).step_by(2) {
            let is_path = ["crates/", "scripts/", "docs/", "clients/"].iter().any(|top| word.starts_with(top));
            let is_plain = word.chars().all(|c| c.is_ascii_alphanumeric() || "._/-".contains(c));
            if is_path && is_plain && !dated && !root().join(word).exists() {
                complaints.push(format!("{} names {word}, which is not there", shown(path)));
            }
        }
    }
    assert_none(complaints);
}

#[test]
fn no_link_between_documents_is_broken() {
    let mut complaints = Vec::new();
    let is_document = |path: &&PathBuf| path.extension().is_some_and(|extension| extension == "md");
    for path in files().iter().filter(is_document) {
        let text = fs::read_to_string(path).unwrap();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let target = link.split('#').next().unwrap_or_default();
            let is_local = !target.is_empty() && !target.contains("://") && !target.starts_with("mailto:");
            if is_local && !path.parent().unwrap().join(target).exists() {
                complaints.push(format!("{} links to {link}, which is not there", shown(path)));
            }
        }
    }
    assert_none(complaints);
}
