//! Names: each type has a name of its own in the workspace, and no file is named after an activity.

use std::collections::BTreeMap;

use super::source::{Piece, pieces, shipped_sources};

/// Names that several types have, each with the reason.
const SHARED_TYPE_NAMES: [(&str, &str); 0] = [];

/// Stems of files that end with `ing` and name no activity, each with the reason.
const STEMS: [(&str, &str); 4] = [
    ("setting", "a noun: one setting"),
    ("pending", "the holds of the benchmark that are pending"),
    ("testing", "support for the tests of other crates"),
    ("wiring", "a noun: how the parts of a server are connected"),
];

/// The name of the type that a line of code defines.
fn defined_type(line: &str) -> Option<&str> {
    let is_indented = line.starts_with(' ');
    let mut words = line.split_whitespace().peekable();
    while words.next_if(|word| word.starts_with("pub") || *word == "unsafe" || word.ends_with(')')).is_some() {}
    let is_definition = match words.next()? {
        "struct" | "enum" | "trait" | "union" => true,
        // An indented one is the associated type of a trait or of an implementation.
        "type" => !is_indented,
        _ => false,
    };
    let name = words.next().filter(|_| is_definition)?;
    let end = name.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(name.len());
    Some(&name[..end]).filter(|name| name.starts_with(char::is_uppercase))
}

#[test]
fn type_names_are_unique() {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (path, source) in shipped_sources() {
        for piece in pieces(&source) {
            let Piece::Code { line, text } = piece else { continue };
            if let Some(name) = defined_type(&text) {
                places.entry(name.to_owned()).or_default().push(format!("{}:{line}", super::shown(&path)));
            }
        }
    }
    let file = |place: &String| place.split(':').next().unwrap_or_default().to_owned();
    let shared = places.into_iter().filter(|(name, places)| {
        // Two definitions in one file are variants for two configurations.
        let is_one_file = places.iter().all(|place| file(place) == file(&places[0]));
        !is_one_file && !SHARED_TYPE_NAMES.iter().any(|(allowed, _)| allowed == name)
    });
    super::assert_none(shared.map(|(name, places)| format!("{name}: {}", places.join(", "))).collect());
}

#[test]
fn no_file_is_named_after_an_activity() {
    let sources = super::sources();
    let stems = sources.iter().filter_map(|(path, _)| Some((path, path.file_stem()?.to_str()?)));
    let activities = stems.filter(|(path, stem)| {
        let last = stem.rsplit('_').next().unwrap_or_default();
        let is_case = super::shown(path).contains("/tests/") || super::shown(path).contains("/conformance/");
        !is_case && last.ends_with("ing") && !STEMS.iter().any(|(allowed, _)| last == *allowed)
    });
    super::assert_none(activities.map(|(path, _)| super::shown(path)).collect());
}

#[test]
fn definitions_of_types_are_recognized() {
    let defined = [
        "pub struct A {",
        "    enum B<T> {",
        "pub(in crate::a) trait C: D {",
        "type E = F;",
        "    type G = H;",
        "fn i() {",
    ];
    let names: Vec<_> = defined.into_iter().filter_map(defined_type).collect();
    assert_eq!(names, ["A", "B", "C", "E"]);
}
