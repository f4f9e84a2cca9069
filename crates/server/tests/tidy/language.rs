//! Plain English: patterns of the style guide that a test can find in documents, in texts for users and in comments.

use std::fs;

use super::source::{Piece, pieces, shipped_sources};

/// Words that hide the actor or are out of use.
const WORDS: [&str; 6] = ["nobody", "somebody", "everybody", "whoever", "anew", "shall"];

/// A sentence that opens with one of these has no subject that a reader can look up, unless it is a question.
const OPENINGS: [&str; 4] = ["What ", "Who ", "Whoever ", "That which "];

/// Sentences that need the word, each with the reason. The text is a part of the sentence.
const ALLOWED: [(&str, &str); 0] = [];

/// The weaknesses of a text, each with the sentence that has it.
fn weaknesses(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for sentence in sentences(text) {
        if ALLOWED.iter().any(|(allowed, _)| sentence.contains(allowed)) {
            continue;
        }
        let is_question = sentence.ends_with('?');
        if !is_question && OPENINGS.iter().any(|opening| sentence.starts_with(opening)) {
            found.push(format!("opens without a subject: {sentence}"));
        }
        let mut words = sentence.split(|c: char| !c.is_alphabetic());
        if let Some(word) = words.find(|word| WORDS.contains(&word.to_lowercase().as_str())) {
            found.push(format!("`{word}`: {sentence}"));
        }
    }
    found
}

/// Splits a text behind periods, colons, semicolons, question marks and the marks of tables and lists.
fn sentences(text: &str) -> impl Iterator<Item = &str> {
    let ends = |at: usize, c: char| {
        let is_last = text[at + c.len_utf8()..].chars().next().is_none_or(char::is_whitespace);
        c == '|' || (is_last && ".:;?!".contains(c))
    };
    let mut starts = vec![0];
    starts.extend(text.char_indices().filter(|(at, c)| ends(*at, *c)).map(|(at, c)| at + c.len_utf8()));
    starts.push(text.len());
    let parts: Vec<&str> = starts.windows(2).map(|span| text[span[0]..span[1]].trim()).collect();
    parts
        .into_iter()
        .map(|part| part.trim_start_matches(['-', '*', '#', '>', '|', ' ', '"', '(']).trim_end_matches(['|', ' ']))
}

/// A document without its code, with a blank line between its paragraphs.
fn prose(document: &str) -> String {
    let mut is_code = false;
    let mut kept = String::new();
    for line in document.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code {
            let line = line.split('`').step_by(2).collect::<Vec<_>>().join("x");
            let is_apart = line.trim_start().starts_with(['|', '-', '*', '#', '>']) || line.trim().is_empty();
            kept.push_str(if is_apart { "\n\n" } else { " " });
            kept.push_str(line.trim());
        }
    }
    kept
}

#[test]
fn documents_are_in_plain_english() {
    let mut complaints = Vec::new();
    let is_document = |path: &&std::path::PathBuf| path.extension().is_some_and(|extension| extension == "md");
    for path in super::files().iter().filter(is_document) {
        let text = prose(&fs::read_to_string(path).unwrap());
        for paragraph in text.split("\n\n").filter(|paragraph| !paragraph.starts_with('#')) {
            complaints.extend(
                weaknesses(paragraph).into_iter().map(|weakness| format!("{}: {weakness}", super::shown(path))),
            );
        }
    }
    super::assert_none(complaints);
}

#[test]
fn texts_for_users_are_in_plain_english() {
    let mut complaints = Vec::new();
    for (path, source) in shipped_sources() {
        for piece in pieces(&source) {
            if let Piece::Text { line, text } = piece {
                let text = text.trim_start_matches(['r', '#', '"']).replace("\\\n", " ");
                let found = weaknesses(&text);
                complaints
                    .extend(found.into_iter().map(|weakness| format!("{}:{line}: {weakness}", super::shown(&path))));
            }
        }
    }
    super::assert_none(complaints);
}

#[test]
fn comments_are_in_plain_english() {
    let mut complaints = Vec::new();
    for (path, source) in super::sources() {
        let mut paragraph: Option<(usize, String)> = None;
        let mut check = |paragraph: Option<(usize, String)>| {
            let Some((line, text)) = paragraph else { return };
            let found = weaknesses(&prose(&text));
            complaints.extend(found.into_iter().map(|weakness| format!("{}:{line}: {weakness}", super::shown(&path))));
        };
        for piece in pieces(&source) {
            match piece {
                Piece::Comment { text, .. } if text.is_empty() => check(paragraph.take()),
                Piece::Comment { line, text } => {
                    let (_, gathered) = paragraph.get_or_insert_with(|| (line, String::new()));
                    gathered.push_str(&text);
                    gathered.push('\n');
                }
                Piece::Code { text, .. } if text.trim().is_empty() => {}
                Piece::Code { .. } | Piece::Text { .. } => check(paragraph.take()),
            }
        }
        check(paragraph);
    }
    super::assert_none(complaints);
}

#[test]
fn weak_sentences_are_found() {
    assert_eq!(weaknesses("What is away is woken. The gateway reports what changed.").len(), 1);
    assert_eq!(weaknesses("What is away?").len(), 0);
    assert_eq!(weaknesses("It is built anew: nobody reads it; somebody shall.").len(), 3);
    assert_eq!(prose("a\n```\nnobody\n```\nb `anew` c").trim(), "a b x c");
}
