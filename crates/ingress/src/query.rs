//! Query strings, read strictly: an unknown parameter or a repeated one is a mistake worth telling, and text is UTF-8 or refused.

use std::borrow::Cow;

use whimbrel_model::Timestamp;

use super::problem::{Code, Problem};

/// The parameters of one request, each asked for by name once; [`Query::end`] refuses what nobody asked for.
pub(super) struct Query<'a> {
    pairs: Vec<(Cow<'a, str>, Cow<'a, str>)>,
}

impl<'a> Query<'a> {
    pub(super) fn parse(query: Option<&'a str>) -> Result<Self, Problem> {
        let Some(query) = query.filter(|query| !query.is_empty()) else { return Ok(Self { pairs: Vec::new() }) };
        let mut pairs = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            pairs.push((decode(name, true)?, decode(value, true)?));
        }
        Ok(Self { pairs })
    }

    /// Takes a parameter out.
    pub(super) fn take(&mut self, name: &str) -> Result<Option<Cow<'a, str>>, Problem> {
        let Some(at) = self.pairs.iter().position(|(other, _)| other == name) else { return Ok(None) };
        let (_, value) = self.pairs.swap_remove(at);
        if self.pairs.iter().any(|(other, _)| other == name) {
            return Err(Problem::new(Code::BadParameter, format!("`{name}` is given twice")));
        }
        Ok(Some(value))
    }

    /// Takes a parameter out and reads it.
    pub(super) fn take_parsed<T: std::str::FromStr>(&mut self, name: &str, what: &str) -> Result<Option<T>, Problem> {
        let Some(text) = self.take(name)? else { return Ok(None) };
        let wrong = |_| Problem::new(Code::BadParameter, format!("`{name}` is {what}, not `{}`", shown(&text)));
        text.parse().map(Some).map_err(wrong)
    }

    pub(super) fn end(self) -> Result<(), Problem> {
        match self.pairs.first() {
            None => Ok(()),
            Some((name, _)) => {
                Err(Problem::new(Code::BadParameter, format!("there is no parameter `{}` here", shown(name))))
            }
        }
    }
}

/// Takes a parameter that is a time.
pub(super) fn take_time(query: &mut Query<'_>, name: &str) -> Result<Option<Timestamp>, Problem> {
    let wrong = |error: whimbrel_model::TimeError| Problem::new(Code::BadTime, format!("`{name}`: {error}"));
    query.take(name)?.map(|text| Timestamp::parse(&text).map_err(wrong)).transpose()
}

/// What a problem shows of a text that may be of any length.
pub(super) fn shown(text: &str) -> Cow<'_, str> {
    const SHOWN_CHARS: usize = 64;
    match text.char_indices().nth(SHOWN_CHARS) {
        None => Cow::Borrowed(text),
        Some((end, _)) => Cow::Owned(format!("{}…", &text[..end])),
    }
}

/// Decodes `%41`, and `+` where it means a space.
pub(super) fn decode(text: &str, plus_is_space: bool) -> Result<Cow<'_, str>, Problem> {
    if !text.bytes().any(|b| b == b'%' || (plus_is_space && b == b'+')) {
        return Ok(Cow::Borrowed(text));
    }
    let wrong = || Problem::new(Code::BadParameter, format!("`{}` is not well encoded", shown(text)));
    let mut decoded = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'+' if plus_is_space => b' ',
            b'%' => {
                let high = bytes.next().and_then(hex_digit).ok_or_else(wrong)?;
                let low = bytes.next().and_then(hex_digit).ok_or_else(wrong)?;
                high << 4 | low
            }
            other => other,
        });
    }
    String::from_utf8(decoded).map(Cow::Owned).map_err(|_| wrong())
}

fn hex_digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn parameters_are_decoded_and_taken_once() {
        let mut query = Query::parse(Some("key=a%20b+c&limit=7&empty")).unwrap();
        assert_eq!(query.take("key").unwrap().unwrap(), "a b c");
        assert_eq!(query.take("key").unwrap(), None);
        assert_eq!(query.take_parsed::<u32>("limit", "a number").unwrap(), Some(7));
        assert_eq!(query.take("empty").unwrap().unwrap(), "");
        assert!(query.end().is_ok());
    }

    #[test]
    fn mistakes_are_told() {
        assert!(Query::parse(Some("key=%zz")).is_err());
        assert!(Query::parse(Some("key=%ff")).is_err());
        assert!(Query::parse(Some("key=%4")).is_err());
        assert!(Query::parse(Some("a=1&a=2")).unwrap().take("a").is_err());
        assert!(Query::parse(Some("dealy=1")).unwrap().end().is_err());
        assert!(Query::parse(Some("limit=x")).unwrap().take_parsed::<u32>("limit", "a number").is_err());
    }

    proptest! {
        #[test]
        fn nonsense_never_panics(text in ".*") {
            let _ = Query::parse(Some(&text)).map(|mut query| query.take("key"));
        }
    }
}
