//! The subset of HTTP/1.1 of the load generator: requests rendered once, answers read for their status and end. Pure code; the input
//! need not be well-formed.

/// Maximum size of an answer's head; the server's has a few hundred bytes.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Bytes of an error body that are kept to be printed.
const SHOWN_BYTES_MAX: usize = 512;

/// Renders a request. `headers` are complete lines without line ends.
pub fn request(method: &str, path: &str, host: &str, headers: &[String], body: &[u8]) -> Vec<u8> {
    let mut text = format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\n");
    for header in headers {
        text.push_str(header);
        text.push_str("\r\n");
    }
    if !body.is_empty() {
        text.push_str(&format!("content-length: {}\r\n", body.len()));
    }
    text.push_str("\r\n");
    let mut bytes = text.into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the load generator cannot parse the server's answer")]
pub struct InvalidAnswer;

/// Parses a sequence of answers from received bytes.
#[derive(Debug, Default)]
pub struct AnswerReader {
    head: Vec<u8>,
    body: Option<AnswerBody>,
    shown: Vec<u8>,
    status: u16,
}

#[derive(Debug, Clone, Copy)]
enum AnswerBody {
    Sized {
        left: usize,
    },
    /// Ends with a chunk of size zero; `tail` is the last bytes received, to find that end across reads.
    Chunked {
        tail: [u8; 5],
    },
}

impl AnswerReader {
    /// Consumes received bytes. Returns the status if the answer is complete. Nothing may follow it, because a connection has only one
    /// request in progress.
    pub fn take(&mut self, bytes: &[u8]) -> Result<Option<u16>, InvalidAnswer> {
        let mut bytes = bytes;
        if self.body.is_none() {
            let before = self.head.len();
            self.head.extend_from_slice(bytes);
            let from = before.saturating_sub(3);
            let Some(end) = find(&self.head[from..], b"\r\n\r\n").map(|at| from + at + 4) else {
                return if self.head.len() > HEAD_BYTES_MAX { Err(InvalidAnswer) } else { Ok(None) };
            };
            bytes = &bytes[end - before..];
            let (status, body) = read_head(&self.head[..end])?;
            self.status = status;
            self.body = Some(body);
        }
        if self.status >= 300 {
            let room = SHOWN_BYTES_MAX.saturating_sub(self.shown.len());
            self.shown.extend_from_slice(&bytes[..bytes.len().min(room)]);
        }
        let Some(body) = &mut self.body else { return Err(InvalidAnswer) };
        let ended = match body {
            AnswerBody::Sized { left } => {
                *left = left.checked_sub(bytes.len()).ok_or(InvalidAnswer)?;
                *left == 0
            }
            AnswerBody::Chunked { tail } => {
                for byte in &bytes[bytes.len().saturating_sub(tail.len())..] {
                    tail.rotate_left(1);
                    tail[4] = *byte;
                }
                tail == b"0\r\n\r\n"
            }
        };
        if ended {
            self.head.clear();
            self.body = None;
            return Ok(Some(self.status));
        }
        Ok(None)
    }

    pub fn take_shown(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.shown)).into_owned()
    }
}

fn read_head(head: &[u8]) -> Result<(u16, AnswerBody), InvalidAnswer> {
    let digits = head.get(9..12).filter(|_| head.starts_with(b"HTTP/1.1 ")).ok_or(InvalidAnswer)?;
    let status = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok()).ok_or(InvalidAnswer)?;
    for line in head.split(|byte| *byte == b'\n') {
        if let Some(value) = value_of(line, b"content-length:") {
            let left = value.trim().parse().map_err(|_| InvalidAnswer)?;
            return Ok((status, AnswerBody::Sized { left }));
        }
        if value_of(line, b"transfer-encoding:").is_some_and(|value| value.trim().eq_ignore_ascii_case("chunked")) {
            return Ok((status, AnswerBody::Chunked { tail: [0; 5] }));
        }
    }
    Ok((status, AnswerBody::Sized { left: 0 }))
}

fn value_of<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a str> {
    let (start, rest) = line.split_at_checked(name.len())?;
    start.eq_ignore_ascii_case(name).then(|| std::str::from_utf8(rest).ok()).flatten()
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|window| window == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn statuses_in_chunks(text: &str, size: usize) -> Vec<u16> {
        let mut reader = AnswerReader::default();
        text.as_bytes().chunks(size).filter_map(|chunk| reader.take(chunk).unwrap()).collect()
    }

    #[test]
    fn an_answer_ends_at_its_length_however_it_arrives() {
        let sized = "HTTP/1.1 201 Created\r\nContent-Length: 5\r\ndate: x\r\n\r\nhello";
        let chunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
        for size in 1..80 {
            assert_eq!(statuses_in_chunks(sized, size), [201], "chunks of {size}");
            assert_eq!(statuses_in_chunks(chunked, size), [200], "chunks of {size}");
        }
        assert_eq!(statuses_in_chunks("HTTP/1.1 204 No Content\r\n\r\n", 7), [204]);
    }

    #[test]
    fn an_error_body_can_be_printed() {
        let mut reader = AnswerReader::default();
        assert_eq!(reader.take(b"HTTP/1.1 429 Too Many\r\ncontent-length: 4\r\n\r\nbusy"), Ok(Some(429)));
        assert_eq!(reader.take_shown(), "busy");
        assert_eq!(reader.take(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"), Ok(Some(200)));
        assert_eq!(reader.take_shown(), "");
    }

    #[test]
    fn invalid_answers_are_rejected() {
        for text in
            ["SSH-2.0-OpenSSH\r\n\r\n", "HTTP/1.1 abc\r\n\r\n", "HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nok"]
        {
            assert_eq!(AnswerReader::default().take(text.as_bytes()), Err(InvalidAnswer), "{text}");
        }
        assert_eq!(AnswerReader::default().take(&[b'x'; HEAD_BYTES_MAX + 1]), Err(InvalidAnswer));
    }
}
