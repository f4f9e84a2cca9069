//! Strict query strings: an unknown or repeated parameter is an error, and text must be UTF-8.

use std::borrow::Cow;

use whimbrel_model::Timestamp;

use crate::problem::{ApiProblem, Code};

/// The parameters of one request. Each is taken by name once; [`Query::end`] rejects the ones left over.
pub(super) struct Query<'a> {
    pairs: Vec<(Cow<'a, str>, Cow<'a, str>)>,
}

impl<'a> Query<'a> {
    pub(super) fn parse(query: Option<&'a str>) -> Result<Self, ApiProblem> {
        let Some(query) = query.filter(|query| !query.is_empty()) else { return Ok(Self { pairs: Vec::new() }) };
        let mut pairs = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            pairs.push((decode(name, true)?, decode(value, true)?));
        }
        Ok(Self { pairs })
    }

    /// Removes a parameter and returns its value.
    pub(super) fn take(&mut self, name: &str) -> Result<Option<Cow<'a, str>>, ApiProblem> {
        let Some(at) = self.pairs.iter().position(|(other, _)| other == name) else { return Ok(None) };
        let (_, value) = self.pairs.swap_remove(at);
        if self.pairs.iter().any(|(other, _)| other == name) {
            return Err(ApiProblem::new(Code::BadParameter, format!("`{name}` is given more than once")));
        }
        Ok(Some(value))
    }

    /// Removes a parameter and parses its value. `what` describes a valid value, such as "a number".
    pub(super) fn take_parsed<T: std::str::FromStr>(
        &mut self,
        name: &str,
        what: &str,
    ) -> Result<Option<T>, ApiProblem> {
        let Some(text) = self.take(name)? else { return Ok(None) };
        let wrong = |_| ApiProblem::new(Code::BadParameter, format!("`{name}` must be {what}, got `{}`", shown(&text)));
        text.parse().map(Some).map_err(wrong)
    }

    pub(super) fn end(self) -> Result<(), ApiProblem> {
        match self.pairs.first() {
            None => Ok(()),
            Some((name, _)) => Err(ApiProblem::new(Code::BadParameter, format!("unknown parameter `{}`", shown(name)))),
        }
    }
}

/// The number of entries on a page.
pub(super) fn check_limit(limit: Option<usize>, default: usize, most: usize) -> Result<usize, ApiProblem> {
    let limit = limit.unwrap_or(default);
    if (1..=most).contains(&limit) {
        return Ok(limit);
    }
    Err(ApiProblem::new(Code::BadParameter, format!("`limit` must be 1 to {most}, got {limit}")))
}

/// Removes a parameter that is a time.
pub(super) fn take_time(query: &mut Query<'_>, name: &str) -> Result<Option<Timestamp>, ApiProblem> {
    let wrong = |error: whimbrel_model::TimeError| ApiProblem::new(Code::BadTime, format!("`{name}`: {error}"));
    query.take(name)?.map(|text| Timestamp::parse(&text).map_err(wrong)).transpose()
}

/// A text of any length, cut for a problem's detail.
pub(super) fn shown(text: &str) -> Cow<'_, str> {
    const SHOWN_CHARS: usize = 64;
    match text.char_indices().nth(SHOWN_CHARS) {
        None => Cow::Borrowed(text),
        Some((end, _)) => Cow::Owned(format!("{}…", &text[..end])),
    }
}

/// Decodes percent encoding, and `+` as a space if `plus_is_space`.
pub(super) fn decode(text: &str, plus_is_space: bool) -> Result<Cow<'_, str>, ApiProblem> {
    if !text.bytes().any(|b| b == b'%' || (plus_is_space && b == b'+')) {
        return Ok(Cow::Borrowed(text));
    }
    let wrong = || ApiProblem::new(Code::BadParameter, format!("`{}` is not percent-encoded UTF-8", shown(text)));
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
    fn invalid_queries_are_rejected() {
        assert!(Query::parse(Some("key=%zz")).is_err());
        assert!(Query::parse(Some("key=%ff")).is_err());
        assert!(Query::parse(Some("key=%4")).is_err());
        assert!(Query::parse(Some("a=1&a=2")).unwrap().take("a").is_err());
        assert!(Query::parse(Some("dealy=1")).unwrap().end().is_err());
        assert!(Query::parse(Some("limit=x")).unwrap().take_parsed::<u32>("limit", "a number").is_err());
    }

    proptest! {
        #[test]
        fn arbitrary_text_never_panics(text in ".*") {
            let _ = Query::parse(Some(&text)).map(|mut query| query.take("key"));
        }
    }
}
