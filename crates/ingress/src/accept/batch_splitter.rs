//! Splits a batch into its entries while its body arrives: lines of NDJSON, or the elements of one JSON array.
//!
//! Pure and synchronous. The splitter takes the body in pieces of any size, and passes on each entry's bytes as soon as they are complete.
//! It buffers only the incomplete entry at the end of a piece. It only finds where entries end; the caller parses them.

use memchr::{memchr, memchr2};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BatchFormat {
    /// One entry in each line. Empty lines are skipped.
    Lines,
    Array,
}

/// The body does not have the expected format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BatchFormatError {
    #[error("the body is not a JSON array: send one, or NDJSON with `Content-Type: application/x-ndjson`")]
    NoArray,
    #[error("an entry is missing between commas")]
    MissingEntry,
    #[error("brackets do not match")]
    Brackets,
    #[error("unexpected data after the end of the array")]
    AfterArray,
    #[error("the array is not closed")]
    Unclosed,
}

pub(crate) struct BatchSplitter {
    format: BatchFormat,
    /// The beginning of an entry whose end has not arrived yet.
    carry: Vec<u8>,
    at: ArrayPosition,
    depth: usize,
    in_string: bool,
    escaped: bool,
}

/// The position relative to the array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ArrayPosition {
    Before,
    /// `first`: no entry has been read yet, so the array may still be empty.
    In {
        first: bool,
    },
    After,
}

impl BatchSplitter {
    pub(crate) fn new(format: BatchFormat) -> Self {
        Self { format, carry: Vec::new(), at: ArrayPosition::Before, depth: 0, in_string: false, escaped: false }
    }

    /// Takes the next piece of the body, and passes on the entries that it completes.
    pub(crate) fn feed<E: From<BatchFormatError>>(
        &mut self,
        piece: &[u8],
        mut each: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        match self.format {
            BatchFormat::Lines => self.feed_lines(piece, &mut each),
            BatchFormat::Array => self.feed_array(piece, &mut each),
        }
    }

    /// Handles the end of the body.
    pub(crate) fn finish<E: From<BatchFormatError>>(
        mut self,
        mut each: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        match (self.format, self.at) {
            (BatchFormat::Lines, _) => hand_out_line(&self.carry, &mut each),
            (BatchFormat::Array, ArrayPosition::After) => Ok(()),
            (BatchFormat::Array, ArrayPosition::Before) => Err(BatchFormatError::NoArray.into()),
            (BatchFormat::Array, ArrayPosition::In { .. }) => {
                self.carry.clear();
                Err(BatchFormatError::Unclosed.into())
            }
        }
    }

    fn feed_lines<E>(&mut self, piece: &[u8], each: &mut impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        let mut rest = piece;
        while let Some(end) = memchr(b'\n', rest) {
            if self.carry.is_empty() {
                hand_out_line(&rest[..end], each)?;
            } else {
                self.carry.extend_from_slice(&rest[..end]);
                hand_out_line(&self.carry, each)?;
                self.carry.clear();
            }
            rest = &rest[end + 1..];
        }
        self.carry.extend_from_slice(rest);
        Ok(())
    }

    fn feed_array<E: From<BatchFormatError>>(
        &mut self,
        piece: &[u8],
        each: &mut impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        // Where in this piece the current entry begins; its earlier bytes are in `carry`.
        let mut entry_from = 0;
        let mut at = 0;
        while at < piece.len() {
            if self.in_string {
                at = self.pass_string(piece, at);
                continue;
            }
            let byte = piece[at];
            at += 1;
            match self.at {
                ArrayPosition::Before if byte == b'[' => {
                    self.at = ArrayPosition::In { first: true };
                    entry_from = at;
                }
                ArrayPosition::Before if byte.is_ascii_whitespace() => {}
                ArrayPosition::Before => return Err(BatchFormatError::NoArray.into()),
                ArrayPosition::After if byte.is_ascii_whitespace() => {}
                ArrayPosition::After => return Err(BatchFormatError::AfterArray.into()),
                ArrayPosition::In { first } => match byte {
                    b'"' => self.in_string = true,
                    b'{' | b'[' => self.depth += 1,
                    b',' | b']' if self.depth == 0 => {
                        let last = byte == b']';
                        self.hand_out_element(&piece[entry_from..at - 1], first && last, each)?;
                        self.at = if last { ArrayPosition::After } else { ArrayPosition::In { first: false } };
                        entry_from = at;
                    }
                    b'}' | b']' => self.depth = self.depth.checked_sub(1).ok_or(BatchFormatError::Brackets)?,
                    _ => {}
                },
            }
        }
        if matches!(self.at, ArrayPosition::In { .. }) {
            self.carry.extend_from_slice(&piece[entry_from..]);
        }
        Ok(())
    }

    /// Skips to behind the end of the string, or to the end of the piece.
    fn pass_string(&mut self, piece: &[u8], mut at: usize) -> usize {
        if self.escaped {
            self.escaped = false;
            return at + 1;
        }
        let Some(found) = memchr2(b'"', b'\\', &piece[at..]) else { return piece.len() };
        at += found;
        match piece[at] {
            b'"' => self.in_string = false,
            _ => self.escaped = true,
        }
        at + 1
    }

    fn hand_out_element<E: From<BatchFormatError>>(
        &mut self,
        rest: &[u8],
        may_be_empty: bool,
        each: &mut impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let element = if self.carry.is_empty() {
            rest.trim_ascii()
        } else {
            self.carry.extend_from_slice(rest);
            self.carry.trim_ascii()
        };
        let outcome = match element {
            [] if may_be_empty => Ok(()),
            [] => Err(BatchFormatError::MissingEntry.into()),
            element => each(element),
        };
        self.carry.clear();
        outcome
    }
}

fn hand_out_line<E>(line: &[u8], each: &mut impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
    match line.trim_ascii() {
        [] => Ok(()),
        entry => each(entry),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::value::RawValue;

    fn split(format: BatchFormat, pieces: &[&[u8]]) -> Result<Vec<String>, BatchFormatError> {
        let mut entries = Vec::new();
        let mut splitter = BatchSplitter::new(format);
        let mut keep = |entry: &[u8]| {
            entries.push(String::from_utf8_lossy(entry).into_owned());
            Ok(())
        };
        for piece in pieces {
            splitter.feed(piece, &mut keep)?;
        }
        splitter.finish(&mut keep)?;
        Ok(entries)
    }

    #[test]
    fn arrays_are_split_at_their_own_commas_only() {
        let body = br#" [ {"a":"],}\"\\"} , [1,[2]] ,"x,y" , 7 ] "#;
        assert_eq!(split(BatchFormat::Array, &[body]).unwrap(), [r#"{"a":"],}\"\\"}"#, "[1,[2]]", "\"x,y\"", "7"]);
        assert_eq!(split(BatchFormat::Array, &[b"[]"]).unwrap(), Vec::<String>::new());
        assert_eq!(split(BatchFormat::Array, &[b"[ ]"]).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn a_malformed_array_is_rejected_with_its_reason() {
        for (body, why) in [
            (&b"{}"[..], BatchFormatError::NoArray),
            (b"", BatchFormatError::NoArray),
            (b"[1,]", BatchFormatError::MissingEntry),
            (b"[,1]", BatchFormatError::MissingEntry),
            (b"[1", BatchFormatError::Unclosed),
            (b"[\"a]", BatchFormatError::Unclosed),
            (b"[}]", BatchFormatError::Brackets),
            (b"[1] 2", BatchFormatError::AfterArray),
        ] {
            assert_eq!(split(BatchFormat::Array, &[body]), Err(why), "{}", String::from_utf8_lossy(body));
        }
    }

    #[test]
    fn lines_may_end_with_the_body_and_be_empty() {
        let entries = split(BatchFormat::Lines, &[b"{\"a\":1}\r\n\n  \n{\"b\"", b":2}"]).unwrap();
        assert_eq!(entries, ["{\"a\":1}", "{\"b\":2}"]);
    }

    fn any_json() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<i64>().prop_map(serde_json::Value::from),
            ".*".prop_map(serde_json::Value::from),
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(serde_json::Value::from),
                proptest::collection::hash_map(".*", inner, 0..4)
                    .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
            ]
        })
    }

    fn pieces_of<'a>(body: &'a [u8], cuts: &[usize]) -> Vec<&'a [u8]> {
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (body.len() + 1)).chain([0, body.len()]).collect();
        cuts.sort_unstable();
        cuts.windows(2).map(|pair| &body[pair[0]..pair[1]]).collect()
    }

    proptest! {
        #[test]
        fn any_split_of_an_array_gives_the_result_of_a_whole_parser(
            entries in proptest::collection::vec(any_json(), 0..6),
            cuts in proptest::collection::vec(any::<usize>(), 0..8),
            pretty: bool,
        ) {
            let body = if pretty { serde_json::to_string_pretty(&entries) } else { serde_json::to_string(&entries) }.unwrap();
            let expected: Vec<&RawValue> = serde_json::from_str(&body).unwrap();
            let expected: Vec<String> = expected.iter().map(|raw| raw.get().to_owned()).collect();
            prop_assert_eq!(split(BatchFormat::Array, &pieces_of(body.as_bytes(), &cuts)).unwrap(), expected);
        }

        #[test]
        fn any_split_of_any_bytes_gives_the_same_result(
            body in proptest::collection::vec(prop_oneof![Just(b'['), Just(b']'), Just(b'{'), Just(b'}'), Just(b','), Just(b'"'), Just(b'\\'), Just(b'\n'), Just(b' '), any::<u8>()], 0..64),
            cuts in proptest::collection::vec(any::<usize>(), 0..8),
        ) {
            for format in [BatchFormat::Lines, BatchFormat::Array] {
                prop_assert_eq!(split(format, &pieces_of(&body, &cuts)), split(format, &[&body]));
            }
        }
    }
}
