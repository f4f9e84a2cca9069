//! Bytes become messages.
//!
//! A frame that came whole is unmasked where it lies and never copied. Only what is incomplete is kept: a piece of a header, a frame's
//! bytes so far, the fragments of a message so far. Memory follows what has come and not what a header claims, and what a header claims
//! beyond the limits is refused before a byte of it is taken.

use super::close::is_valid_close_code;
use super::frame::{CONTROL_MAX_BYTES, HEADER_MAX_BYTES, Header, HeaderRead, Opcode, apply_mask, read_header};

/// The side that decodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Every frame that it receives must be masked.
    Server,
    /// None may be.
    Client,
}

/// What is taken at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    pub frame_bytes: usize,
    /// Of all fragments of a message together.
    pub message_bytes: usize,
}

/// Something whole that came.
#[derive(Debug, PartialEq, Eq)]
pub enum Incoming<'a> {
    Text(&'a str),
    Binary(&'a [u8]),
    Ping(&'a [u8]),
    Pong(&'a [u8]),
    /// The last thing that is taken: what follows is left unread.
    Close(Option<(u16, &'a str)>),
}

/// Why a connection cannot go on. The decoder takes nothing afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    #[error("{0}")]
    Protocol(&'static str),
    #[error("a text is not UTF-8")]
    NotUtf8,
    #[error("a {what} has more than {limit} bytes")]
    TooLarge { what: &'static str, limit: usize },
}

impl Violation {
    /// The code that the protocol closes with.
    pub fn close_code(self) -> u16 {
        match self {
            Self::Protocol(_) => 1002,
            Self::NotUtf8 => 1007,
            Self::TooLarge { .. } => 1009,
        }
    }
}

/// One connection's decoder.
#[derive(Debug)]
pub struct Decoder {
    role: Role,
    is_over: bool,
    /// Only while something is incomplete.
    partial: Option<Box<Partial>>,
}

#[derive(Debug, Default)]
struct Partial {
    /// The beginning of a header that has not come whole.
    head: [u8; HEADER_MAX_BYTES],
    head_len: usize,
    /// The frame whose bytes are still coming, and how many have.
    frame: Option<Header>,
    taken: u64,
    /// Bytes so far of a control frame, which may come between the fragments of a message.
    control: Vec<u8>,
    /// Bytes so far of the message.
    message: Vec<u8>,
    /// The kind of the message, once its first fragment has begun.
    kind: Option<Kind>,
    /// Up to where the message is known to be UTF-8.
    checked: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Binary,
}

impl Decoder {
    pub fn new(role: Role) -> Self {
        Self { role, is_over: false, partial: None }
    }

    /// Whether it holds nothing: no part of a frame and no fragment.
    pub fn is_idle(&self) -> bool {
        self.partial.is_none()
    }

    /// Bytes that it keeps.
    pub fn kept_bytes(&self) -> usize {
        let kept = |partial: &Partial| size_of::<Partial>() + partial.control.capacity() + partial.message.capacity();
        self.partial.as_deref().map_or(0, kept)
    }

    /// Takes all the bytes and hands over what they complete, in order. They are unmasked in place.
    pub fn take(
        &mut self,
        bytes: &mut [u8],
        limits: &Limits,
        mut sink: impl FnMut(Incoming<'_>),
    ) -> Result<(), Violation> {
        let mut rest = bytes;
        while !rest.is_empty() && !self.is_over {
            let taken = self.take_some(rest, limits, &mut sink).inspect_err(|_| {
                self.is_over = true;
                self.partial = None;
            })?;
            rest = &mut rest[taken..];
        }
        Ok(())
    }

    /// Takes some of the bytes, at least one.
    fn take_some(
        &mut self,
        bytes: &mut [u8],
        limits: &Limits,
        sink: &mut impl FnMut(Incoming<'_>),
    ) -> Result<usize, Violation> {
        if self.partial.is_none() {
            match read_header(bytes) {
                HeaderRead::Wrong(why) => return Err(Violation::Protocol(why)),
                HeaderRead::Whole(header) => {
                    self.judge(&header, limits)?;
                    if let Some(end) = whole_frame_end(&header, bytes.len()) {
                        self.take_whole(&header, &mut bytes[header.size..end], sink)?;
                        return Ok(end);
                    }
                    self.partial.get_or_insert_default().begin(header);
                    return Ok(header.size);
                }
                HeaderRead::Partial => {}
            }
        }
        let has_frame = self.partial.as_deref().is_some_and(|partial| partial.frame.is_some());
        if has_frame { self.take_payload(bytes, sink) } else { self.take_head(bytes, limits, sink) }
    }

    /// A frame that lies there whole, with nothing before it. Only a first fragment is copied.
    fn take_whole(
        &mut self,
        header: &Header,
        payload: &mut [u8],
        sink: &mut impl FnMut(Incoming<'_>),
    ) -> Result<(), Violation> {
        if let Some(mask) = header.mask {
            apply_mask(payload, mask, 0);
        }
        match header.opcode {
            Opcode::Text if header.is_final => {
                sink(Incoming::Text(std::str::from_utf8(payload).map_err(|_| Violation::NotUtf8)?));
            }
            Opcode::Binary if header.is_final => sink(Incoming::Binary(payload)),
            Opcode::Close | Opcode::Ping | Opcode::Pong => self.take_control(header.opcode, payload, sink)?,
            Opcode::Text | Opcode::Binary | Opcode::Continuation => {
                let partial = self.partial.get_or_insert_default();
                partial.begin(Header { mask: None, ..*header });
                partial.message.extend_from_slice(payload);
                partial.check_text(false)?;
                partial.frame = None;
            }
        }
        Ok(())
    }

    /// One more byte of a header that came in pieces.
    fn take_head(
        &mut self,
        bytes: &[u8],
        limits: &Limits,
        sink: &mut impl FnMut(Incoming<'_>),
    ) -> Result<usize, Violation> {
        let partial = self.partial.get_or_insert_default();
        partial.head[partial.head_len] = bytes[0];
        partial.head_len += 1;
        match read_header(&partial.head[..partial.head_len]) {
            HeaderRead::Wrong(why) => Err(Violation::Protocol(why)),
            HeaderRead::Partial => Ok(1),
            HeaderRead::Whole(header) => {
                partial.head_len = 0;
                self.judge(&header, limits)?;
                if let Some(partial) = &mut self.partial {
                    partial.begin(header);
                }
                if header.length == 0 {
                    self.end_frame(&header, sink)?;
                }
                Ok(1)
            }
        }
    }

    /// Whether a frame with that header may come now.
    fn judge(&self, header: &Header, limits: &Limits) -> Result<(), Violation> {
        match (self.role, header.mask) {
            (Role::Server, None) => return Err(Violation::Protocol("a frame of a client is not masked")),
            (Role::Client, Some(_)) => return Err(Violation::Protocol("a frame of a server is masked")),
            _ => {}
        }
        if header.opcode.is_control() {
            return Ok(());
        }
        let (has_begun, so_far) = match self.partial.as_deref() {
            Some(partial) => (partial.kind.is_some(), partial.message.len() as u64),
            None => (false, 0),
        };
        match header.opcode {
            Opcode::Continuation if !has_begun => {
                return Err(Violation::Protocol("a fragment continues no message"));
            }
            Opcode::Text | Opcode::Binary if has_begun => {
                return Err(Violation::Protocol("a message begins in the middle of another"));
            }
            _ => {}
        }
        if header.length > limits.frame_bytes as u64 {
            return Err(Violation::TooLarge { what: "frame", limit: limits.frame_bytes });
        }
        if so_far.saturating_add(header.length) > limits.message_bytes as u64 {
            return Err(Violation::TooLarge { what: "message", limit: limits.message_bytes });
        }
        Ok(())
    }

    /// Bytes of the frame that has begun.
    fn take_payload(&mut self, bytes: &mut [u8], sink: &mut impl FnMut(Incoming<'_>)) -> Result<usize, Violation> {
        let Some(partial) = &mut self.partial else { return Ok(bytes.len()) };
        let Some(header) = partial.frame else { return Ok(bytes.len()) };
        let missing = header.length - partial.taken;
        let count = usize::try_from(missing).map_or(bytes.len(), |missing| missing.min(bytes.len()));
        let piece = &mut bytes[..count];
        if let Some(mask) = header.mask {
            apply_mask(piece, mask, partial.taken);
        }
        partial.taken += count as u64;
        if header.opcode.is_control() {
            partial.control.extend_from_slice(piece);
        } else {
            partial.message.extend_from_slice(piece);
            partial.check_text(false)?;
        }
        if partial.taken == header.length {
            self.end_frame(&header, sink)?;
        }
        Ok(count)
    }

    /// All bytes of a frame that came in pieces are there.
    fn end_frame(&mut self, header: &Header, sink: &mut impl FnMut(Incoming<'_>)) -> Result<(), Violation> {
        let Some(mut partial) = self.partial.take() else { return Ok(()) };
        partial.frame = None;
        if header.opcode.is_control() {
            let control = std::mem::take(&mut partial.control);
            // The message that it came into the middle of goes on.
            if partial.kind.is_some() {
                self.partial = Some(partial);
            }
            return self.take_control(header.opcode, &control, sink);
        }
        if !header.is_final {
            self.partial = Some(partial);
            return Ok(());
        }
        partial.check_text(true)?;
        match partial.kind {
            Some(Kind::Text) => {
                sink(Incoming::Text(std::str::from_utf8(&partial.message).map_err(|_| Violation::NotUtf8)?));
            }
            _ => sink(Incoming::Binary(&partial.message)),
        }
        Ok(())
    }

    fn take_control(
        &mut self,
        opcode: Opcode,
        payload: &[u8],
        sink: &mut impl FnMut(Incoming<'_>),
    ) -> Result<(), Violation> {
        debug_assert!(payload.len() <= CONTROL_MAX_BYTES);
        match opcode {
            Opcode::Ping => sink(Incoming::Ping(payload)),
            Opcode::Pong => sink(Incoming::Pong(payload)),
            _ => {
                let said = read_close(payload)?;
                self.is_over = true;
                self.partial = None;
                sink(Incoming::Close(said));
            }
        }
        Ok(())
    }
}

impl Partial {
    fn begin(&mut self, header: Header) {
        match header.opcode {
            Opcode::Text => self.kind = Some(Kind::Text),
            Opcode::Binary => self.kind = Some(Kind::Binary),
            _ => {}
        }
        (self.frame, self.taken, self.head_len) = (Some(header), 0, 0);
    }

    /// Looks at what is new of a text, so that one that cannot be UTF-8 any more is refused at once.
    fn check_text(&mut self, is_last: bool) -> Result<(), Violation> {
        if self.kind != Some(Kind::Text) {
            return Ok(());
        }
        match std::str::from_utf8(&self.message[self.checked..]) {
            Ok(_) => self.checked = self.message.len(),
            // Cut in the middle of a character, which the next piece may complete.
            Err(error) if error.error_len().is_none() && !is_last => self.checked += error.valid_up_to(),
            Err(_) => return Err(Violation::NotUtf8),
        }
        Ok(())
    }
}

fn whole_frame_end(header: &Header, available: usize) -> Option<usize> {
    let end = usize::try_from(header.length).ok()?.checked_add(header.size)?;
    (end <= available).then_some(end)
}

fn read_close(payload: &[u8]) -> Result<Option<(u16, &str)>, Violation> {
    let (code, reason) = match payload {
        [] => return Ok(None),
        [_] => return Err(Violation::Protocol("a close frame has half a code")),
        [high, low, reason @ ..] => (u16::from_be_bytes([*high, *low]), reason),
    };
    if !is_valid_close_code(code) {
        return Err(Violation::Protocol("a close code is not one that can be sent"));
    }
    Ok(Some((code, std::str::from_utf8(reason).map_err(|_| Violation::NotUtf8)?)))
}
