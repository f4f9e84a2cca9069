//! JSON with `//` and `/* */` comments and trailing commas, as in configuration files. Every value has its line. Pure code; the input
//! need not be well-formed.

/// Maximum nesting depth of values.
const DEPTH_MAX: usize = 64;

/// A value and the line on which it begins.
#[derive(Debug, Clone, PartialEq)]
pub struct JsonNode {
    pub line: usize,
    pub value: JsonValue,
}

#[derive(Debug, Clone, PartialEq)]
pub enum JsonValue {
    Null,
    Flag(bool),
    Number(f64),
    Text(String),
    List(Vec<JsonNode>),
    /// In the order of the file.
    Object(Vec<(String, JsonNode)>),
}

impl JsonValue {
    /// The type of the value, for messages.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Flag(_) => "true or false",
            Self::Number(_) => "a number",
            Self::Text(_) => "a text",
            Self::List(_) => "a list",
            Self::Object(_) => "an object",
        }
    }
}

/// A syntax error with its line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct JsonError {
    pub line: usize,
    pub what: String,
}

/// Parses a whole text as one value.
pub fn parse(text: &str) -> Result<JsonNode, JsonError> {
    let mut parser = Parser { rest: text.strip_prefix('\u{feff}').unwrap_or(text), line: 1 };
    let node = parser.value(0)?;
    parser.skip_space()?;
    match parser.rest.chars().next() {
        None => Ok(node),
        Some(more) => Err(parser.wrong(format!("`{more}` follows the end"))),
    }
}

struct Parser<'a> {
    rest: &'a str,
    line: usize,
}

impl Parser<'_> {
    fn wrong(&self, what: impl Into<String>) -> JsonError {
        JsonError { line: self.line, what: what.into() }
    }

    fn advance(&mut self, bytes: usize) {
        self.line += self.rest.as_bytes()[..bytes].iter().filter(|byte| **byte == b'\n').count();
        self.rest = &self.rest[bytes..];
    }

    fn skip_space(&mut self) -> Result<(), JsonError> {
        loop {
            let space = self.rest.len() - self.rest.trim_start().len();
            self.advance(space);
            if self.rest.starts_with("//") {
                self.advance(self.rest.find('\n').unwrap_or(self.rest.len()));
            } else if self.rest.starts_with("/*") {
                let end = self.rest.find("*/").ok_or_else(|| self.wrong("a comment has no end"))?;
                self.advance(end + 2);
            } else {
                return Ok(());
            }
        }
    }

    fn takes(&mut self, wanted: char) -> bool {
        let is_there = self.rest.starts_with(wanted);
        if is_there {
            self.advance(wanted.len_utf8());
        }
        is_there
    }

    fn value(&mut self, depth: usize) -> Result<JsonNode, JsonError> {
        self.skip_space()?;
        if depth > DEPTH_MAX {
            return Err(self.wrong("values are nested too deeply"));
        }
        let line = self.line;
        let value = match self.rest.chars().next() {
            Some('{') => self.object(depth)?,
            Some('[') => self.list(depth)?,
            Some('"') => JsonValue::Text(self.text()?),
            Some(_) => self.word()?,
            None => return Err(self.wrong("the file ends where a value is expected")),
        };
        Ok(JsonNode { line, value })
    }

    fn object(&mut self, depth: usize) -> Result<JsonValue, JsonError> {
        self.takes('{');
        let mut members: Vec<(String, JsonNode)> = Vec::new();
        loop {
            self.skip_space()?;
            if self.takes('}') {
                return Ok(JsonValue::Object(members));
            }
            if !self.rest.starts_with('"') {
                return Err(self.wrong("a name in quotes or `}` is expected"));
            }
            let name = self.text()?;
            if members.iter().any(|(other, _)| *other == name) {
                return Err(self.wrong(format!("`{name}` is given twice")));
            }
            self.skip_space()?;
            if !self.takes(':') {
                return Err(self.wrong(format!("`:` is missing after `{name}`")));
            }
            let value = self.value(depth + 1)?;
            members.push((name, value));
            self.skip_space()?;
            if !self.takes(',') && !self.rest.starts_with('}') {
                return Err(self.wrong("`,` or `}` is expected"));
            }
        }
    }

    fn list(&mut self, depth: usize) -> Result<JsonValue, JsonError> {
        self.takes('[');
        let mut values = Vec::new();
        loop {
            self.skip_space()?;
            if self.takes(']') {
                return Ok(JsonValue::List(values));
            }
            values.push(self.value(depth + 1)?);
            self.skip_space()?;
            if !self.takes(',') && !self.rest.starts_with(']') {
                return Err(self.wrong("`,` or `]` is expected"));
            }
        }
    }

    /// A text in quotes; the strict JSON parser reads its escapes.
    fn text(&mut self) -> Result<String, JsonError> {
        let mut escaped = false;
        let end = self.rest.char_indices().skip(1).find(|(_, character)| {
            let ends = *character == '"' && !escaped;
            escaped = *character == '\\' && !escaped;
            ends || *character == '\n'
        });
        match end {
            Some((at, '"')) => {
                let text = serde_json::from_str(&self.rest[..=at])
                    .map_err(|_| self.wrong("a text has an invalid escape or a control character"))?;
                self.advance(at + 1);
                Ok(text)
            }
            _ => Err(self.wrong("a text does not end on its line")),
        }
    }

    fn word(&mut self) -> Result<JsonValue, JsonError> {
        let is_of_word = |character: char| character.is_ascii_alphanumeric() || "+-._".contains(character);
        let end = self.rest.find(|character| !is_of_word(character)).unwrap_or(self.rest.len());
        let value = match &self.rest[..end] {
            "null" => JsonValue::Null,
            "true" => JsonValue::Flag(true),
            "false" => JsonValue::Flag(false),
            word => match serde_json::from_str(word) {
                Ok(number) => JsonValue::Number(number),
                Err(_) => {
                    let shown = if word.is_empty() { self.rest.chars().take(1).collect() } else { word.to_owned() };
                    return Err(self.wrong(format!("`{shown}` is not a value")));
                }
            },
        };
        self.advance(end);
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_trailing_commas_are_accepted_and_values_have_their_lines() {
        let text = "// of the shop\n{\n  \"a\": [1, 2,], // two\n  /* three\n  lines */ \"b\": \"x//y\\n\",\n}\n";
        let JsonNode { line: 2, value: JsonValue::Object(members) } = parse(text).unwrap() else { panic!() };
        assert_eq!((members[0].1.line, members[1].1.line), (3, 5));
        assert_eq!(members[1].1.value, JsonValue::Text("x//y\n".into()));
        let JsonValue::List(list) = &members[0].1.value else { panic!() };
        assert_eq!(list.len(), 2);
    }

    #[test]
    fn an_error_has_its_line() {
        for (text, line, what) in [
            ("{\n\"a\" 1}", 2, "`:` is missing after `a`"),
            ("{\"a\": yes}", 1, "`yes` is not a value"),
            ("{\"a\":\n\"b\n\"}", 2, "a text does not end"),
            ("[1 2]", 1, "`,` or `]`"),
            ("{\"a\":1}\n}", 2, "follows the end"),
            ("{\"a\":1,\n\"a\":2}", 2, "given twice"),
            ("/* x", 1, "no end"),
            ("", 1, "ends where a value"),
            ("{,}", 1, "a name in quotes"),
        ] {
            let wrong = parse(text).unwrap_err();
            assert!(wrong.line == line && wrong.what.contains(what), "{text:?}: {wrong}");
        }
    }

    #[test]
    fn deep_nesting_is_rejected() {
        assert!(parse(&"[".repeat(100_000)).unwrap_err().what.contains("too deeply"));
    }
}
