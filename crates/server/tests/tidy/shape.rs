//! The size of functions and structs.

use super::source::{Piece, pieces, shipped_sources};

/// The most lines of a function.
const FUNCTION_LINES_MAX: usize = 80;
/// The most arguments of a function, without `self`.
const ARGUMENTS_MAX: usize = 7;
/// The most fields of a struct.
const FIELDS_MAX: usize = 20;

/// Functions and structs that exceed a limit, each with the reason.
const ALLOWED: [(&str, &str); 0] = [];

/// A function or struct with its size.
#[derive(Debug, PartialEq, Eq)]
enum Item {
    Function { line: usize, name: String, lines: usize, arguments: usize },
    Struct { line: usize, name: String, fields: usize },
}

/// The functions and structs of a file. Literals and comments are cut out, so that braces in them do not count.
fn items(source: &str) -> Vec<Item> {
    let code: Vec<String> = pieces(source)
        .into_iter()
        .filter_map(|piece| match piece {
            Piece::Code { text, .. } => Some(text),
            Piece::Comment { .. } | Piece::Text { .. } => None,
        })
        .collect();
    (0..code.len()).filter_map(|at| item(&code, at)).collect()
}

fn item(code: &[String], at: usize) -> Option<Item> {
    let mut words = code[at].split_whitespace();
    let keyword = words.find(|word| !(word.starts_with("pub") || ["const", "async", "unsafe"].contains(word)))?;
    let name: String = words.next()?.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    let (line, rest) = (at + 1, &code[at..]);
    match keyword {
        "fn" => {
            let lines = body(rest)?.len();
            Some(Item::Function { line, name, lines, arguments: arguments(rest) })
        }
        "struct" => {
            let body = body(rest)?;
            let is_field = |text: &&String| {
                let mut depth_one = text.trim_start().trim_start_matches("pub").trim_start();
                if depth_one.starts_with('(') {
                    depth_one = depth_one.split_once(')').map_or("", |(_, rest)| rest.trim_start());
                }
                let end = depth_one.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(0);
                end > 0 && depth_one[end..].starts_with(": ")
            };
            Some(Item::Struct { line, name, fields: body.iter().skip(1).filter(is_field).count() })
        }
        _ => None,
    }
}

/// The lines from the definition to the brace that closes its body; a definition without a body has none.
fn body(rest: &[String]) -> Option<&[String]> {
    let (mut depth, mut parentheses) = (0_usize, 0_usize);
    for (number, line) in rest.iter().enumerate() {
        for c in line.chars() {
            match c {
                '(' | '[' => parentheses += 1,
                ')' | ']' => parentheses = parentheses.saturating_sub(1),
                '{' => depth += 1,
                '}' if depth == 1 => return Some(&rest[..=number]),
                '}' => depth = depth.saturating_sub(1),
                ';' if depth == 0 && parentheses == 0 => return None,
                _ => {}
            }
        }
    }
    None
}

/// The number of arguments of the function that begins here: colons at the first level of its parentheses.
fn arguments(rest: &[String]) -> usize {
    let text = rest.join(" ");
    let Some(open) = text.find("fn ").and_then(|at| Some(at + text[at..].find('(')?)) else { return 0 };
    let (mut depth, mut count, mut before) = (0_usize, 0, ' ');
    for (at, c) in text[open..].char_indices() {
        match c {
            '(' | '[' | '{' | '<' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            '>' if before != '-' => depth -= 1,
            ':' if depth == 1 && before != ':' && !text[open + at + 1..].starts_with(':') => count += 1,
            _ => {}
        }
        if depth == 0 {
            break;
        }
        before = c;
    }
    count
}

#[test]
fn functions_and_structs_are_small() {
    let mut complaints = Vec::new();
    for (path, source) in shipped_sources() {
        for item in items(&source) {
            let (line, name, excess) = match item {
                Item::Function { line, name, lines, .. } if lines > FUNCTION_LINES_MAX => {
                    (line, name, format!("{lines} lines"))
                }
                Item::Function { line, name, arguments, .. } if arguments > ARGUMENTS_MAX => {
                    (line, name, format!("{arguments} arguments"))
                }
                Item::Struct { line, name, fields } if fields > FIELDS_MAX => (line, name, format!("{fields} fields")),
                Item::Function { .. } | Item::Struct { .. } => continue,
            };
            let place = format!("{}: {name}", super::shown(&path));
            if !ALLOWED.iter().any(|(allowed, _)| *allowed == place) {
                complaints.push(format!("{place} (line {line}) has {excess}"));
            }
        }
    }
    super::assert_none(complaints);
}

#[test]
fn every_exception_is_needed() {
    let mut exceeding = Vec::new();
    for (path, source) in shipped_sources() {
        for item in items(&source) {
            let (Item::Function { name, .. } | Item::Struct { name, .. }) = &item;
            let is_large = match &item {
                Item::Function { lines, arguments, .. } => *lines > FUNCTION_LINES_MAX || *arguments > ARGUMENTS_MAX,
                Item::Struct { fields, .. } => *fields > FIELDS_MAX,
            };
            if is_large {
                exceeding.push(format!("{}: {name}", super::shown(&path)));
            }
        }
    }
    let unneeded = ALLOWED.iter().filter(|(allowed, _)| !exceeding.iter().any(|place| place == allowed));
    super::assert_none(unneeded.map(|(allowed, _)| format!("ALLOWED names `{allowed}`, which is small")).collect());
}

#[test]
fn sizes_are_counted() {
    let source = "pub async fn a(b: u8, c: &dyn Fn(d: u8) -> u8) -> u8 {\n    \"}\"\n}\nstruct E {\n    /// x: y\n    pub f: u8,\n    pub(crate) g: u8,\n}\nstruct H;\n";
    let expected = [
        Item::Function { line: 1, name: "a".to_owned(), lines: 3, arguments: 2 },
        Item::Struct { line: 4, name: "E".to_owned(), fields: 2 },
    ];
    assert_eq!(items(source), expected);
}
