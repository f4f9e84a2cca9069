//! Reads Rust source without a parser: which files are tests, and which bytes are code, comments and string literals.

use std::path::{Path, PathBuf};

/// A piece of a source file. Line numbers begin at 1.
#[derive(Debug, PartialEq, Eq)]
pub enum Piece {
    Code { line: usize, text: String },
    Comment { line: usize, text: String },
    Text { line: usize, text: String },
}

/// The source files that are part of a library or a binary, each without its test modules.
pub fn shipped_sources() -> Vec<(PathBuf, String)> {
    let sources = super::sources().into_iter().filter(|(path, _)| !is_test(path));
    sources.map(|(path, text)| (path, without_tests(&text))).collect()
}

/// Whether a file is compiled for tests, examples or the build only.
pub fn is_test(path: &Path) -> bool {
    let shown = super::shown(path);
    let is_in = |folder: &str| shown.contains(folder);
    is_in("/tests/") || is_in("/examples/") || shown.ends_with("/tests.rs") || shown.ends_with("build.rs")
}

/// Cuts off the test module at the end of a file.
fn without_tests(text: &str) -> String {
    let end = text
        .find("\n#[cfg(test)]\nmod ")
        .filter(|at| text[*at..].lines().nth(2).is_some_and(|line| line.ends_with('{')));
    text[..end.unwrap_or(text.len())].to_owned()
}

/// Splits source into code, comments and the contents of string literals. One piece holds one line or one literal.
pub fn pieces(source: &str) -> Vec<Piece> {
    let mut found = Vec::new();
    let (mut rest, mut line, mut code) = (source, 1, String::new());
    while let Some(next) = rest.chars().next() {
        let taken = if rest.starts_with("//") {
            let text = rest.lines().next().unwrap_or_default();
            found.push(Piece::Comment { line, text: text.trim_start_matches(['/', '!']).trim().to_owned() });
            text.len()
        } else if let Some(length) = literal_length(rest, &code) {
            found.push(Piece::Text { line, text: rest[..length].to_owned() });
            code.push_str("\"\"");
            length
        } else if let Some(length) = character_length(rest) {
            code.push_str("' '");
            length
        } else {
            if next == '\n' {
                found.push(Piece::Code { line, text: std::mem::take(&mut code) });
            } else {
                code.push(next);
            }
            next.len_utf8()
        };
        line += rest[..taken].matches('\n').count();
        rest = &rest[taken..];
    }
    found.push(Piece::Code { line, text: code });
    found
}

/// The length of the string literal that `rest` begins with.
fn literal_length(rest: &str, code: &str) -> Option<usize> {
    let is_word = code.ends_with(|last: char| last.is_alphanumeric() || last == '_');
    let raw = rest.strip_prefix('r').filter(|_| !is_word);
    if let Some(raw) = raw {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        if raw[hashes..].starts_with('"') {
            let end = format!("\"{}", "#".repeat(hashes));
            let length = raw[hashes + 1..].find(&end)?;
            return Some(1 + hashes + 1 + length + end.len());
        }
    }
    let quoted = rest.strip_prefix('"')?;
    let mut is_escaped = false;
    let end = quoted.find(|c: char| {
        let is_end = c == '"' && !is_escaped;
        is_escaped = c == '\\' && !is_escaped;
        is_end
    })?;
    Some(end + 2)
}

/// The length of the character literal that `rest` begins with; a lifetime is none.
fn character_length(rest: &str) -> Option<usize> {
    let quoted = rest.strip_prefix('\'')?;
    let content = match quoted.strip_prefix('\\') {
        Some(escaped) => 1 + escaped.find('\'').filter(|at| *at > 0 || escaped.starts_with("''"))?.max(1),
        None => quoted.chars().next()?.len_utf8(),
    };
    quoted[content..].starts_with('\'').then_some(content + 2)
}

#[test]
fn pieces_of_source_are_told_apart() {
    let source = "let a = \"x // \\\" y\"; // a 'comment\nlet b = 'c'; let d: &'static str = r#\"e\"f\"#;";
    let texts: Vec<&str> = source_texts(source).leak().iter().map(String::as_str).collect();
    assert_eq!(texts, ["\"x // \\\" y\"", "r#\"e\"f\"#"]);
    let comments = pieces(source).into_iter().filter(|piece| matches!(piece, Piece::Comment { .. })).count();
    assert_eq!(comments, 1);
}

fn source_texts(source: &str) -> Vec<String> {
    let texts = pieces(source).into_iter().filter_map(|piece| match piece {
        Piece::Text { text, .. } => Some(text),
        Piece::Code { .. } | Piece::Comment { .. } => None,
    });
    texts.collect()
}
